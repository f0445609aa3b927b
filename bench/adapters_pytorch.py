"""LoRA by PEFT: makes what adapters.ts trains on, trains the same on one device, and prints what came of it as JSON.

    python bench/adapters_pytorch.py FOLDER '{"model": "gpt2", "steps": 50, "batch": 4, "sequence": 32, "threads": 2}'

FOLDER/net          the checkout: that of "checkpoint", a folder, else random weights of the model's shape
FOLDER/start        PEFT's adapter before the first step; its B is not zero, so that every part of it has gradients
FOLDER/data.npz     tokens and labels; with "texts", a CSV of texts and labels, it is not written
"""

import csv
import json
import resource
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import peft
import torch
import transformers as tf

folder, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
steps, batch, sequence = settings["steps"], settings["batch"], settings["sequence"]
torch.set_num_threads(settings["threads"])
torch.manual_seed(0)

NETS = {  # the shapes of the published ones; dropout is 0, since masks are drawn otherwise
    "minilm": lambda: tf.BertConfig(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536),
    "gpt2": lambda: tf.GPT2Config(),
    "smollm": lambda: tf.LlamaConfig(
        vocab_size=49152, hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
        intermediate_size=1536, max_position_embeddings=2048, rms_norm_eps=1e-5, tie_word_embeddings=True),
}
TARGETS = {"minilm": ["query", "value"], "gpt2": ["c_attn"], "smollm": ["q_proj", "v_proj"]}
NO_DROPOUT = ["hidden_dropout_prob", "attention_probs_dropout_prob", "resid_pdrop", "embd_pdrop", "attn_pdrop"]
kind = settings["model"]
isClassifier = kind == "minilm"


def texts():
    """Ids, masks and labels of a CSV, as a tokenizer of transformers makes them; labels are the sorted classes."""
    rows = list(csv.DictReader(open(settings["texts"], newline="", encoding="utf-8")))
    tokenizer = tf.AutoTokenizer.from_pretrained(settings["checkpoint"])
    made = tokenizer([row["text"] for row in rows], padding=True, truncation=True, max_length=sequence,
                     return_tensors="pt")
    classes = sorted({row["label"] for row in rows})
    return dict(made), torch.tensor([classes.index(row["label"]) for row in rows])


def tokens(vocabulary):
    g = torch.Generator().manual_seed(1)
    ids = torch.randint(5, vocabulary, (5 * batch, sequence + 1), generator=g)
    if not isClassifier:
        return {"input_ids": ids[:, :-1].contiguous()}, ids[:, 1:].contiguous()
    mask = torch.ones_like(ids[:, 1:])
    return {"input_ids": ids[:, 1:].contiguous(), "attention_mask": mask,
            "token_type_ids": torch.zeros_like(mask)}, ids[:, 0] % 4


def net(count):
    config = tf.AutoConfig.from_pretrained(settings["checkpoint"]) if "checkpoint" in settings else NETS[kind]()
    for name in NO_DROPOUT:
        if hasattr(config, name):
            setattr(config, name, 0.0)
    kind_of = tf.AutoModelForSequenceClassification if isClassifier else tf.AutoModelForCausalLM
    if isClassifier:
        config.num_labels = count
    if "checkpoint" in settings:
        return kind_of.from_pretrained(settings["checkpoint"], config=config)
    return kind_of.from_config(config)


inputs, labels = texts() if "texts" in settings else tokens(NETS[kind]().vocab_size)
model = net(int(labels.max()) + 1).float()
shutil.rmtree(folder / "net", ignore_errors=True)
model.save_pretrained(folder / "net")
if "checkpoint" in settings:
    for name in ["tokenizer.json", "tokenizer_config.json"]:
        shutil.copy(Path(settings["checkpoint"]) / name, folder / "net" / name)
config = peft.LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules=TARGETS[kind],
                         task_type="SEQ_CLS" if isClassifier else "CAUSAL_LM", fan_in_fan_out=kind == "gpt2")
model = peft.get_peft_model(model, config)
with torch.no_grad():
    for key, p in model.named_parameters():
        if "lora_B" in key:
            p.copy_(torch.randn(p.shape) * 0.02)
model.save_pretrained(folder / "start")
if "texts" not in settings:
    np.savez(folder / "data.npz", **{k: v.numpy() for k, v in inputs.items()}, label=labels.numpy())
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=settings["lr"], weight_decay=0.01)
model.train()
losses, seconds = [], []
for step in range(steps):
    start = time.perf_counter()
    first = (step * batch) % len(labels)
    logits = model(**{k: v[first:first + batch] for k, v in inputs.items()}).logits
    loss = torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), labels[first:first + batch].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    seconds.append(time.perf_counter() - start)
shape = inputs["input_ids"].shape
trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
print(json.dumps({
    "losses": losses, "samplesPerS": batch / sorted(seconds)[len(seconds) // 2], "sequence": shape[1],
    "samples": shape[0], "peakMiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    "parameters": sum(p.numel() for p in model.parameters()), "trained": trained,
}))
