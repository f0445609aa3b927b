"""Trains architectures of timm and transformers for six steps in PyTorch and in Asteroid, from files that both of PyTorch's
exporters wrote in their default forms (for inference, for one sample), and compares every loss.

How to run (PyTorch, timm, transformers, onnx, onnxscript; a build in dist/):
    python tools/compare_architectures.py run RESULTS.jsonl [name ...]     goes on where it stopped; one process a case
    python tools/compare_architectures.py table RESULTS.jsonl              the table of docs/imported-models.md

Weights are random, images and configurations small. PyTorch trains in eval mode, with batch normalization merged into the
convolutions before it as exporters do, and Asteroid with --batch-norm inference: the same network on both sides.
"""

import copy
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

SAMPLES, BATCH, STEPS, MOMENTUM, CLASSES, LIMIT_S = 24, 8, 6, 0.9, 7, 420
ACCEPTED = 2e-3
ROOT = Path(__file__).resolve().parent.parent
WAYS = ("dynamo", "TorchScript")

# timm: name -> (size of the image, options, learning rate)
VIT = dict(embed_dim=48, depth=2, num_heads=3)
TIMM = {
    "resnet10t": (64, {}, 0.01),
    "regnety_002": (64, {}, 0.01),
    "mobilenetv3_small_050": (64, {}, 0.01),
    "mobilenetv4_conv_small_050": (64, {}, 0.01),
    "lcnet_050": (64, {}, 0.01),
    "tinynet_e": (64, {}, 0.01),
    "mnasnet_small": (64, {}, 0.001),
    "ghostnet_050": (64, {}, 0.01),
    "repvgg_a0": (64, {}, 0.01),
    "mobileone_s0": (64, {}, 0.01),
    "fastvit_t8": (64, {}, 0.01),
    "starnet_s1": (64, {}, 0.01),
    "edgenext_xx_small": (64, {}, 0.01),
    "convnext_atto": (64, {}, 0.01),
    "convnextv2_atto": (64, {}, 0.01),
    "inception_next_atto": (64, {}, 0.01),
    "vit_tiny_patch16_224": (64, dict(img_size=64, **VIT), 0.02),
    "vit_relpos_small_patch16_224": (64, dict(img_size=64, **VIT), 0.02),
    "deit_tiny_distilled_patch16_224": (64, dict(img_size=64, **VIT), 0.02),
    "deit3_small_patch16_224": (64, dict(img_size=64, **VIT), 0.02),
    "beit_base_patch16_224": (64, dict(img_size=64, **VIT), 0.02),
    "eva02_tiny_patch14_224": (56, dict(img_size=56, **VIT), 0.02),
    "cait_xxs24_224": (64, dict(img_size=64, embed_dim=48, depth=2, num_heads=4, depth_token_only=1), 0.02),
    "swin_tiny_patch4_window7_224": (64, dict(img_size=64, window_size=4, embed_dim=24, depths=(2, 2), num_heads=(2, 4)), 0.02),
    "swinv2_tiny_window8_256": (64, dict(img_size=64, embed_dim=24, depths=(2, 2), num_heads=(2, 4)), 0.02),
    "coatnet_nano_rw_224": (64, dict(img_size=64), 0.01),
    "pit_ti_224": (64, dict(img_size=64), 0.02),
    "levit_128s": (224, {}, 0.01),
    "poolformer_s12": (64, {}, 0.01),
    "mixer_s32_224": (64, dict(img_size=64), 0.02),
    "resmlp_12_224": (64, dict(img_size=64), 0.02),
    "xcit_nano_12_p16_224": (64, dict(img_size=64, depth=2), 0.02),
    "twins_pcpvt_small": (64, dict(img_size=64, depths=(1, 1, 1, 1)), 0.02),
    "pvt_v2_b0": (64, {}, 0.02),
    "sequencer2d_s": (64, dict(layers=(1, 1, 1, 1), embed_dims=(24, 48, 48, 48), hidden_sizes=(6, 12, 12, 12)), 0.02),
}

SMALL = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)


def text(kind, config, **options):
    """A sequence classifier of token numbers."""

    def build():
        import torch
        import transformers

        options_here = dict(vocab_size=96, num_labels=CLASSES, **options)
        net = getattr(transformers, kind)(getattr(transformers, config)(**options_here))
        net.config.pad_token_id = 0
        net.config.use_cache = False
        net.config._attn_implementation = "eager"

        class Logits(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.net = net

            def forward(self, ids):
                return self.net(input_ids=ids).logits

        return Logits()

    return build


def image(kind, config, **options):
    def build():
        import torch
        import transformers

        net = getattr(transformers, kind)(getattr(transformers, config)(num_labels=CLASSES, **options))

        class Logits(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.net = net

            def forward(self, x):
                return self.net(pixel_values=x).logits

        return Logits()

    return build


def pooled(kind, config, **options):
    """A text encoder, its mean and a classifier."""

    def build():
        import torch
        import transformers

        net = getattr(transformers, kind)(getattr(transformers, config)(**options))

        class Pooled(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.net, self.head = net, torch.nn.Linear(32, CLASSES)

            def forward(self, ids):
                return self.head(self.net(input_ids=ids).last_hidden_state.mean(1))

        return Pooled()

    return build


def clip():
    import torch
    import transformers

    config = transformers.CLIPTextConfig(vocab_size=96, max_position_embeddings=16, eos_token_id=95, projection_dim=32, **SMALL)

    class Contrast(torch.nn.Module):
        """CLIP's logits: texts beside fixed prompts, which are parameters, scaled by exp(logit_scale)."""

        def __init__(self):
            super().__init__()
            self.text = transformers.CLIPTextModelWithProjection(config)
            self.prompts = torch.nn.Parameter(torch.randn(CLASSES, 32))
            self.logit_scale = torch.nn.Parameter(torch.tensor(1.5))

        def forward(self, ids):
            texts = torch.nn.functional.normalize(self.text(input_ids=ids).text_embeds, dim=-1)
            return self.logit_scale.exp() * texts @ torch.nn.functional.normalize(self.prompts, dim=-1).t()

    return Contrast()


def prompt_tuning():
    import torch
    import transformers

    net = transformers.BertModel(transformers.BertConfig(vocab_size=96, **SMALL))

    class Prompted(torch.nn.Module):
        """Learned tokens before the text's."""

        def __init__(self):
            super().__init__()
            self.net, self.head = net, torch.nn.Linear(32, CLASSES)
            self.prompt = torch.nn.Parameter(torch.randn(4, 32) * 0.2)

        def forward(self, ids):
            words = self.net.embeddings.word_embeddings(ids)
            prompt = self.prompt.unsqueeze(0).expand(ids.shape[0], -1, -1)
            return self.head(self.net(inputs_embeds=torch.cat([prompt, words], 1)).last_hidden_state[:, 0])

    return Prompted()


LLAMA = dict(num_key_value_heads=2, max_position_embeddings=32, **SMALL)
SWIN = dict(image_size=32, patch_size=2, window_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 4))
PATCHES = dict(image_size=32, patch_size=8, **SMALL)
TRANSFORMERS = {
    "BERT": ("text", text("BertForSequenceClassification", "BertConfig", **SMALL), 0.02),
    "ALBERT": ("text", text("AlbertForSequenceClassification", "AlbertConfig", embedding_size=16, **SMALL), 0.02),
    "RoBERTa": ("text", text("RobertaForSequenceClassification", "RobertaConfig", **SMALL), 0.02),
    "GPT-2": ("text", text("GPT2ForSequenceClassification", "GPT2Config", n_embd=32, n_layer=2, n_head=4, n_positions=32), 0.02),
    "Bloom": ("text", pooled("BloomModel", "BloomConfig", vocab_size=96, hidden_size=32, n_layer=2, n_head=4), 0.02),
    "LLaMA": ("text", pooled("LlamaModel", "LlamaConfig", vocab_size=96, **LLAMA), 0.02),
    "T5 encoder": ("text", pooled("T5EncoderModel", "T5Config", vocab_size=96, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4), 0.02),
    "CLIP text": ("text", clip, 0.02),
    "BERT, prompt tuning": ("text", prompt_tuning, 0.02),
    "ViT": ("image", image("ViTForImageClassification", "ViTConfig", **PATCHES), 0.02),
    "BEiT": ("image", image("BeitForImageClassification", "BeitConfig", use_relative_position_bias=True, out_indices=[1, 2], **PATCHES), 0.02),
    "Swin": ("image", image("SwinForImageClassification", "SwinConfig", **SWIN), 0.02),
    "DINOv2": ("image", image("Dinov2ForImageClassification", "Dinov2Config", **{**PATCHES, "intermediate_size": 64}), 0.02),
}


def build(name):
    """The network in eval mode, its inputs, labels and learning rate."""
    import torch

    torch.manual_seed(0)
    if name in TIMM:
        import timm

        size, options, rate = TIMM[name]
        net = timm.create_model(name, pretrained=False, num_classes=CLASSES, **options)
        inputs = torch.randn(SAMPLES, 3, size, size)
    else:
        kind, make, rate = TRANSFORMERS[name]
        net = make()
        inputs = torch.randn(SAMPLES, 3, 32, 32) if kind == "image" else torch.randint(1, 95, (SAMPLES, 10))
        if name == "CLIP text":
            inputs[:, -1] = 95
    with torch.no_grad():
        # fresh statistics would make batch normalization the identity
        for module in net.modules():
            if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
                module.running_mean.normal_(0, 0.1)
                # with smaller variances the values of these nets grow without bound
                module.running_var.uniform_(0.5, 1.5).mul_(6 if name.startswith("mobileone") or name.startswith("mobilenetv4") else 1)
    return net.eval(), inputs, torch.randint(0, CLASSES, (SAMPLES,)), rate


def merged(net):
    """The network with batch normalization merged into the convolution or linear layer before it, and how many are left."""
    import torch
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    norms = lambda one: sum(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in one.modules())
    if norms(net) == 0:
        return net, 0
    inner = copy.deepcopy(net)
    traced = torch.fx.symbolic_trace(inner, concrete_args=None)
    modules = dict(traced.named_modules())
    for node in list(traced.graph.nodes):
        if node.op != "call_module" or not isinstance(modules[node.target], torch.nn.modules.batchnorm._BatchNorm):
            continue
        before, norm = node.args[0], modules[node.target]
        if before.op != "call_module" or len(before.users) > 1 or type(modules[before.target]).__name__ not in ("Conv2d", "Conv2dSame"):
            continue
        conv = modules[before.target]
        fused = fuse_conv_bn_eval(conv, norm)
        for name, parameter in fused.named_parameters(recurse=False):
            setattr(conv, name, torch.nn.Parameter(parameter.detach().clone()))
        after = torch.nn.Sequential(*[part for part in (getattr(norm, "drop", None), getattr(norm, "act", None)) if part is not None])
        parent, _, leaf = node.target.rpartition(".")
        setattr(traced.get_submodule(parent), leaf, after)
        modules[node.target] = after
    traced.recompile()
    return traced.eval(), norms(traced)


def torch_losses(net, inputs, labels, rate):
    import torch

    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=rate, momentum=MOMENTUM)
    losses = []
    for step in range(STEPS):
        part = slice(step * BATCH % SAMPLES, step * BATCH % SAMPLES + BATCH)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(inputs[part]), labels[part])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class Leaf:
    """timm's normalization with an activation is one module for torch.fx."""

    def __enter__(self):
        import torch

        self.old = torch.fx.Tracer.is_leaf_module
        norm = torch.nn.modules.batchnorm._BatchNorm
        old = self.old
        torch.fx.Tracer.is_leaf_module = lambda tracer, module, name: isinstance(module, norm) or old(tracer, module, name)

    def __exit__(self, *_):
        import torch

        torch.fx.Tracer.is_leaf_module = self.old


def asteroid(*words):
    command = ["node", str(ROOT / "dist" / "cli" / "main.js"), *words]
    end = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    if end.returncode != 0:
        raise RuntimeError(end.stderr.strip().splitlines()[-1])
    return [json.loads(line) for line in end.stdout.splitlines() if line.startswith("{")]


def reference(net, inputs, labels, rate):
    """PyTorch's losses, how many batch normalizations were not merged, and a note."""
    try:
        with Leaf():
            same, unmerged = merged(net)
        return torch_losses(same, inputs, labels, rate), unmerged, None
    except Exception as error:
        return torch_losses(net, inputs, labels, rate), 0, f"torch.fx cannot merge batch normalization ({type(error).__name__})"


def one(name):
    """Compares one architecture: the fields of a result for each exporter."""
    import torch

    torch.set_num_threads(1)
    net, inputs, labels, rate = build(name)
    known = reference(copy.deepcopy(net), inputs, labels, rate)
    for way in WAYS:
        with tempfile.TemporaryDirectory() as folder:
            yield {"name": name, "way": way, **compared(net, (inputs, labels, rate), way, known, folder)}


def compared(net, data, way, known, folder):
    import numpy as np
    import onnx
    import torch

    (inputs, labels, rate), (expected, unmerged, note) = data, known
    result = {"parameters": sum(p.numel() for p in net.parameters() if p.requires_grad), **({"note": note} if note else {})}
    path = os.path.join(folder, "net.onnx")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            options = dict(dynamo=True, verbose=False) if way == "dynamo" else dict(dynamo=False)
            torch.onnx.export(copy.deepcopy(net), (inputs[:1],), path, **options)
    except Exception as error:
        return {**result, "problem": f"the exporter fails ({type(error).__name__})", "detail": str(error)[:300]}
    left = sum(node.op_type == "BatchNormalization" for node in onnx.load(path, load_external_data=False).graph.node)
    if unmerged != left and note is None:
        result["note"] = f"{left} batch normalizations left in the file, {unmerged} in PyTorch's"
    np.save(os.path.join(folder, "x.npy"), inputs.numpy())
    np.save(os.path.join(folder, "y.npy"), labels.numpy())
    flags = ["--batch", str(BATCH), "--micro-batch", str(BATCH), "--steps", str(STEPS), "--lr", str(rate)]
    flags += ["--momentum", str(MOMENTUM), "--no-shuffle", "--batch-norm", "inference", "--out", os.path.join(folder, "run")]
    try:
        [described] = asteroid("inspect", "--json", "--model", path)
        tensors = described["tensors"]
        result["trained"] = sum(tensor["count"] for tensor in tensors if tensor["trained"])
        result["guesses"] = [
            f"{tensor['name']} {tensor['shape']} {'trained' if tensor['trained'] else 'fixed'}: {tensor['why']}"
            for tensor in tensors if not tensor["sure"]
        ]
        result["notes"] = described["notes"]
        asteroid("train", "--json", "--model", path, "--data", f"npy:{folder}/x.npy,{folder}/y.npy", *flags)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return {**result, "problem": str(error)[-300:].replace(folder + "/", "")}
    found = [json.loads(line)["loss"] for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    differences = [abs(a - b) / abs(b) for a, b in zip(found, expected)]
    return {**result, "losses": expected, "found": found, "first": differences[0], "largest": max(differences)}


def run(path, names):
    done = set()
    if os.path.exists(path):
        done = {json.loads(line)["name"] for line in open(path)}
    for name in names or [*TIMM, *TRANSFORMERS]:
        if name in done:
            continue
        started = time.monotonic()
        command = [sys.executable, __file__, "one", name]
        try:
            end = subprocess.run(command, capture_output=True, text=True, timeout=4 * LIMIT_S)
            problem = (end.stderr.strip().splitlines() or ["no answer"])[-1][:300]
            rows = [json.loads(line) for line in end.stdout.splitlines() if line.startswith("{")]
        except subprocess.TimeoutExpired:
            rows, problem = [], f"not done in {4 * LIMIT_S} s"
        missing = [way for way in WAYS if all(row["way"] != way for row in rows)]
        rows += [{"name": name, "way": way, "problem": problem} for way in missing]
        with open(path, "a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        for row in rows:
            print(name, row["way"], row.get("problem") or f"{row['largest']:.1e}", row.get("note", ""), flush=True)
        print(f"  {time.monotonic() - started:.0f} s", flush=True)


def table(path):
    rows = [json.loads(line) for line in open(path)]
    print("| Model | Exported by | Parameters | Trained | First loss | Six losses | |")
    print("| --- | --- | ---: | ---: | ---: | ---: | --- |")
    for row in rows:
        if "largest" not in row:
            print(f"| {row['name']} | {row['way']} | | | | | {row.get('problem', '')} |")
            continue
        reasons = [row["note"]] if "note" in row else []
        computed = [guess for guess in row["guesses"] if "ahead" in guess]
        if row["largest"] > ACCEPTED and computed:
            reasons.append(f"{len(computed)} tensors computed ahead, trained as they are")
        cells = [row["name"], row["way"], f"{row['parameters']:,}", f"{row['trained']:,}", f"{row['first']:.0e}", f"{row['largest']:.0e}", "; ".join(reasons)]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    command, *words = sys.argv[1:]
    if command == "one":
        for row in one(*words):
            print(json.dumps(row), flush=True)
    elif command == "run":
        run(words[0], words[1:])
    else:
        table(words[0])
