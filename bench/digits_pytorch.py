"""One step's gradients, Asteroid's and PyTorch's in float32, against PyTorch's in float64.

How to run:  npm run build:bench && python bench/digits_pytorch.py [--only PATTERN] [--seeds N] [--forms lowered,plain,reference]
             [--dist FOLDER]     (pip install torch torchvision timm onnx)

For each net: from random weights, the relative error (2-norm) of the gradient of each parameter; the worst parameter counts. A
parameter whose gradient is zero in exact arithmetic (the bias in front of a normalization) is left out. Printed are the medians over
the seeds of PyTorch's float32 error and of each form's, and the median and the largest of their ratios.
"""

import argparse
import copy
import fnmatch
import json
import os
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import torch
from torch import nn

warnings.filterwarnings('ignore')
HERE = os.path.dirname(os.path.abspath(__file__))


def offsets(offset):
    net = nn.Sequential(
        *(nn.Conv2d(4, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(16 * 64, 10)),
    )
    return net, torch.randn(16, 4, 8, 8) + offset


class PreActivation(nn.Module):
    """Normalizations of sums, of concatenations, and of matrices."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(16), nn.BatchNorm2d(16), nn.BatchNorm2d(32), nn.BatchNorm1d(24)])
        self.convs = nn.ModuleList([nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1, groups=4), nn.Conv2d(32, 24, 1)])
        self.fully, self.head = nn.Linear(24 * 64, 24), nn.Linear(24, 10)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.convs[0](torch.relu(self.norms[0](x)))
        x = torch.cat([x, self.convs[1](torch.relu(self.norms[1](x)))], 1)
        x = self.convs[2](torch.relu(self.norms[2](x)))
        return self.head(torch.relu(self.norms[3](self.fully(x.flatten(1)))))


def pre_activation(offset):
    return PreActivation(), torch.randn(8, 3, 8, 8) + offset


def rows(offset):
    class Shift(nn.Module):
        def forward(self, x):
            return x + offset

    net = nn.Sequential(nn.Linear(16, 32), Shift(), nn.LayerNorm(32), nn.Linear(32, 32), Shift(), nn.LayerNorm(32), nn.Flatten(), nn.Linear(32 * 6, 10))
    return net, torch.randn(16, 6, 16)


def images(make):
    class Shift(nn.Module):
        def forward(self, x):
            return x + self.offset

    def case(offset):
        shift = Shift()
        shift.offset = offset
        net = nn.Sequential(nn.Conv2d(4, 16, 1), shift, make(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), make(16), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 64, 10))
        return net, torch.randn(16, 4, 8, 8)

    return case


class Exponential(nn.Module):
    """Softmax, log-softmax and log-sum-exp of rows far from zero, and normalization to length 1."""

    def __init__(self, offset):
        super().__init__()
        self.offset = offset
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(4)])
        self.head = nn.Linear(17, 10)

    def forward(self, x):
        x = torch.softmax(self.layers[0](x) + self.offset, -1)
        x = torch.log_softmax(self.layers[1](x * 16) + self.offset, -1)
        y = self.layers[2](x) + self.offset
        z = torch.logsumexp(y, -1, keepdim=True)
        x = torch.nn.functional.normalize(self.layers[3](y - self.offset), dim=-1)
        return self.head(torch.cat([x, z - self.offset], -1))


def exponential(offset):
    return Exponential(offset), torch.randn(16, 16)


def network(make, size=64, batch=8):
    return lambda _: (make(), torch.randn(batch, 3, size, size))


def timm(name):
    def make():
        import timm as library

        return library.create_model(name, num_classes=10)

    return make


def vision(name):
    def make():
        import torchvision

        return getattr(torchvision.models, name)(num_classes=10)

    return make


CASES = {
    **{f'batch norm, offset {n}': (offsets, n) for n in (0, 3, 30, 300)},
    **{f'pre-activation, offset {n}': (pre_activation, n) for n in (0, 3, 30, 300)},
    **{f'layer norm, offset {n}': (rows, n) for n in (0, 3, 30, 300, 3000)},
    **{f'group norm, offset {n}': (images(lambda c: nn.GroupNorm(4, c)), n) for n in (0, 3, 30, 300)},
    **{f'instance norm, offset {n}': (images(lambda c: nn.InstanceNorm2d(c, affine=True)), n) for n in (0, 3, 30, 300)},
    **{f'softmax, offset {n}': (exponential, n) for n in (0, 30, 3000)},
    'shufflenet-v2 0.5': (network(vision('shufflenet_v2_x0_5')), 0),
    'mnasnet 0.5': (network(vision('mnasnet0_5')), 0),
    'mobileone': (network(timm('mobileone_s0')), 0),
    'hrnet': (network(timm('hrnet_w18_small')), 0),
    'mixnet': (network(timm('mixnet_s')), 0),
    'mobilenet-v2': (network(vision('mobilenet_v2')), 0),
    'resnet-18': (network(vision('resnet18')), 0),
    'densenet-121': (network(vision('densenet121'), batch=4), 0),
    'resnet-v2': (network(timm('resnetv2_50')), 0),
    'regnet': (network(vision('regnet_x_400mf')), 0),
    'vit': (network(timm('vit_tiny_patch16_224'), 224, 2), 0),
    'convnext': (network(timm('convnext_atto')), 0),
}


def gradients(net, x, y):
    net = copy.deepcopy(net)
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    return {name: parameter.grad.double().numpy() for name, parameter in net.named_parameters() if parameter.grad is not None}


def write(name, case, seed, folder):
    make, offset = case
    torch.manual_seed(seed)
    net, x = make(offset)
    for module in net.modules():
        if isinstance(module, (nn.Dropout, nn.Dropout2d)):
            module.p = 0.0
    net.train()
    y = torch.randint(0, 10, (x.shape[0],))
    path = os.path.join(folder, f'{name.replace(" ", "-").replace(",", "")}-{seed}')
    torch.onnx.export(
        copy.deepcopy(net), x, path + '.onnx', dynamo=False, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, opset_version=17,
        input_names=['x'], output_names=['y'], dynamic_axes={'x': {0: 'N'}, 'y': {0: 'N'}},
    )
    x.numpy().tofile(path + '.x.bin')
    json.dump(list(x.shape), open(path + '.x.json', 'w'))
    json.dump(y.tolist(), open(path + '.y.json', 'w'))
    return {'name': name, 'path': path, 'single': gradients(net, x, y), 'double': gradients(net.double(), x.double(), y)}


def worst(found, exact):
    """The largest relative error over the parameters that have a gradient, and which one it is."""
    norms = {name: np.linalg.norm(value) for name, value in exact.items()}
    largest = max(norms.values())
    errors = [(np.linalg.norm(found[name] - exact[name]) / norms[name], name) for name in exact if name in found and norms[name] > 1e-8 * largest]
    return max(errors)


def read(path, form, like):
    flat = np.fromfile(f'{path}.{form}.bin', dtype=np.float32).astype(np.float64)
    found, at = {}, 0
    for entry in json.load(open(f'{path}.{form}.json')):
        size = int(np.prod(entry['shape']))
        value, at = flat[at : at + size].reshape(entry['shape']), at + size
        if entry['name'] not in like:
            continue
        found[entry['name']] = value if value.shape == like[entry['name']].shape else value.T
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--only', default='*')
    parser.add_argument('--seeds', type=int, default=10)
    parser.add_argument('--forms', default='lowered,plain,reference')
    parser.add_argument('--dist', default='dist')
    parser.add_argument('--verbose', action='store_true')
    options = parser.parse_args()
    forms = options.forms.split(',')
    for name, case in CASES.items():
        if not any(fnmatch.fnmatch(name, pattern) for pattern in options.only.split('|')):
            continue
        with tempfile.TemporaryDirectory() as folder:
            runs = [write(name, case, seed, folder) for seed in range(options.seeds)]
            subprocess.run(['node', os.path.join(HERE, '../dist-bench/digits.js'), folder, '--forms', options.forms, '--dist', options.dist], check=True)
            theirs = [worst(run['single'], run['double']) for run in runs]
            line = f'{name:28} PyTorch {np.median([error for error, _ in theirs]):.1e}'
            for form in forms:
                found = [read(run['path'], form, run['double']) for run in runs]
                if options.seeds and len(found[0]) < len(runs[0]['double']):
                    missing = sorted(set(runs[0]['double']) - set(found[0]))
                    print(f'  not found: {missing[:5]}', file=sys.stderr)
                ours = [worst(gradient, run['double']) for gradient, run in zip(found, runs)]
                ratios = [mine / other for (mine, _), (other, _) in zip(ours, theirs)]
                line += f' | {form} {np.median([error for error, _ in ours]):.1e}, ratio {np.median(ratios):.1f} to {max(ratios):.1f}'
                if options.verbose:
                    line += f' {ours[int(np.argmax(ratios))][1]}'
            print(line, flush=True)


main()
