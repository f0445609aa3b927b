"""Samples a second of torchvision's ImageFolder and PyTorch's DataLoader, as JSON. Started by loading.ts.

    python bench/loading_pytorch.py FOLDER THREADS BATCH EPOCHS
"""

import json
import sys
import time

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2 as transforms

folder, threads, batch, epochs = sys.argv[1], *map(int, sys.argv[2:5])
data = ImageFolder(folder, transforms.Compose([
    transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ColorJitter(0.4, 0.4, 0.4, 0.1),
    transforms.ToImage(), transforms.ToDtype(torch.float32, scale=True),
    transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
]))
loader = DataLoader(data, batch, shuffle=True, num_workers=threads, persistent_workers=True)
rates = []
for epoch in range(epochs + 1):  # the first starts the processes
    start, count = time.perf_counter(), 0
    for inputs, _ in loader:
        count += len(inputs)
    rates.append(count / (time.perf_counter() - start))
print(json.dumps({"samplesPerS": sorted(rates[1:])[epochs // 2]}))
