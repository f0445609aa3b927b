"""PyTorch's side of `npm run bench:lab -- --peers`: one rank of MobileNetV2 for CIFAR, by DDP over gloo or as a straight pipeline of torch.distributed.pipelining.

Arguments: one JSON object with mode ("ddp" or "pipeline"), rank, world, master, batch, microBatchCount, rounds, and for a pipeline the first block of each stage
but the first. Rank 0 prints the milliseconds of each round, as JSON.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

CLASSES = 10


def mobilenet_v2_cifar() -> torch.nn.Sequential:
    """Without the first two strides; as a sequence of blocks."""
    from torchvision.models import MobileNetV2

    settings = [[1, 16, 1, 1], [6, 24, 2, 1], [6, 32, 3, 2], [6, 64, 4, 2], [6, 96, 3, 1], [6, 160, 3, 2], [6, 320, 1, 1]]
    model = MobileNetV2(num_classes=CLASSES, inverted_residual_setting=settings, dropout=0.0)
    model.features[0][0].stride = (1, 1)
    return torch.nn.Sequential(*model.features, torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), model.classifier))


def timed(rounds: int, step) -> list[float]:
    """Milliseconds from the start of each round to the start of the next."""
    starts = []
    for _ in range(rounds):
        starts.append(time.perf_counter())
        step()
    starts.append(time.perf_counter())
    return [(b - a) * 1000 for a, b in zip(starts, starts[1:])]


def run_ddp(job) -> list[float]:
    model = torch.nn.parallel.DistributedDataParallel(mobilenet_v2_cifar())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    count = job["microBatchCount"]
    size = job["batch"] // job["world"] // count
    x, y = torch.randn(size, 3, 32, 32), torch.randint(0, CLASSES, (size,))

    def step() -> None:
        optimizer.zero_grad()
        for index in range(count):
            if index + 1 < count:
                with model.no_sync():
                    (cross_entropy(model(x), y) / count).backward()
            else:
                (cross_entropy(model(x), y) / count).backward()
        optimizer.step()

    return timed(job["rounds"], step)


def run_pipeline(job) -> list[float]:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    blocks = mobilenet_v2_cifar()
    borders = [0, *job["cuts"], len(blocks)]
    rank, world, count = job["rank"], job["world"], job["microBatchCount"]
    part = blocks[borders[rank] : borders[rank + 1]]
    stage = PipelineStage(part, rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, count, loss_fn=cross_entropy)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.randn(job["batch"], 3, 32, 32), torch.randint(0, CLASSES, (job["batch"],))

    def step() -> None:
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x)
        elif rank == world - 1:
            schedule.step(target=y)
        else:
            schedule.step()
        optimizer.step()

    return timed(job["rounds"], step)


def main() -> None:
    job = json.loads(sys.argv[1])
    os.environ.update(MASTER_ADDR=job["master"], MASTER_PORT="29500", GLOO_SOCKET_IFNAME="eth0")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", rank=job["rank"], world_size=job["world"])
    times = run_ddp(job) if job["mode"] == "ddp" else run_pipeline(job)
    dist.barrier()
    if job["rank"] == 0:
        print(json.dumps({"torch": torch.__version__, "roundMs": times}), flush=True)
    dist.destroy_process_group()


main()
