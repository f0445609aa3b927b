"""Models for bench/infer.ts from timm and transformers, by both of PyTorch's exporters; weights are random, since
nothing is downloaded. Arguments: the folder to write to, and names (default: all).

    pip install torch timm transformers onnx onnxscript
    python bench/infer_models.py models && npm run bench -- infer --exported models
"""

import sys
from pathlib import Path

import torch
from torch import nn


def timm_model(name: str):
    import timm

    return timm.create_model(name, pretrained=False, num_classes=1000), {"pixels": torch.randn(2, 3, 224, 224)}


class Logits(nn.Module):
    """The scores of classes alone, of a model that takes ids, mask and token types."""

    def __init__(self, model: nn.Module, names: list[str]):
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *values: torch.Tensor) -> torch.Tensor:
        return self.model(**dict(zip(self.names, values))).logits


def distilbert():
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    inputs = {"input_ids": torch.randint(0, 1000, (2, 64)), "attention_mask": torch.ones(2, 64, dtype=torch.int64)}
    return Logits(DistilBertForSequenceClassification(DistilBertConfig(num_labels=5)), list(inputs)), inputs


def bert():
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048, num_labels=5
    )
    inputs = {
        "input_ids": torch.randint(0, 1000, (2, 64)),
        "attention_mask": torch.ones(2, 64, dtype=torch.int64),
        "token_type_ids": torch.zeros(2, 64, dtype=torch.int64),
    }
    return Logits(BertForSequenceClassification(config), list(inputs)), inputs


# Name: how the model is made, and whether torch.export (dynamo) exports it, or TorchScript.
MODELS = {
    "timm-convnext-tiny": (lambda: timm_model("convnext_tiny"), True),
    "timm-deit3-small": (lambda: timm_model("deit3_small_patch16_224"), False),
    "transformers-distilbert": (distilbert, True),
    "transformers-bert": (bert, False),
}


def export(name: str, path: Path) -> None:
    torch.manual_seed(1)
    make, is_dynamo = MODELS[name]
    model, inputs = make()
    # What was drawn stays; statistics and scales that begin as 0 and 1 would hide mistakes.
    for parameter in model.parameters():
        if parameter.dim() <= 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    names = list(inputs)
    if is_dynamo:
        shapes = tuple({0: torch.export.Dim("N")} for _ in names)
        own = (shapes,) if isinstance(model, Logits) else shapes
        how = {"dynamo": True, "dynamic_shapes": own, "external_data": False}
    else:
        how = {"dynamo": False, "dynamic_axes": {each: {0: "N"} for each in [*names, "logits"]}}
    torch.onnx.export(
        model.eval(), tuple(inputs.values()), path, input_names=names, output_names=["logits"], opset_version=18, **how
    )


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or MODELS:
        export(name, folder / f"{name}.onnx")


if __name__ == "__main__":
    main()
