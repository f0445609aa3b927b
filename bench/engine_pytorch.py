"""PyTorch's side of bench/engine.ts: answers a line "N" with the milliseconds of N training steps. Arguments: model, batch, threads."""

import json
import sys
import time

import torch


def build(name: str, batch: int):
    if name == "bert-small":
        from transformers import BertConfig, BertForSequenceClassification

        config = BertConfig(
            hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=2,
        )
        model = BertForSequenceClassification(config)
        return (lambda tokens: model(tokens).logits), model, torch.randint(0, 30522, (batch, 128)), 2
    import torchvision

    if name == "mobilenet-v2":
        model, size, classes = torchvision.models.mobilenet_v2(num_classes=10, dropout=0.0), 32, 10
    elif name == "efficientnet-b1":
        model, size, classes = torchvision.models.efficientnet_b1(num_classes=10, dropout=0.0, stochastic_depth_prob=0.0), 32, 10
    else:
        model, size, classes = torchvision.models.resnet50(), 224, 1000
    return model, model, torch.randn(batch, 3, size, size), classes


def main() -> None:
    name, batch, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    forward, model, x, classes = build(name, batch)
    model.train()
    labels = torch.randint(0, classes, (batch,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    print(json.dumps({"torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            start = time.perf_counter()
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(forward(x), labels)
            loss.backward()
            optimizer.step()
            loss.item()
            times.append((time.perf_counter() - start) * 1000)
        print(json.dumps(times), flush=True)


main()
