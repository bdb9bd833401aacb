"""PyTorch on the CPU, `pytorch.py THREADS`: with a line of JSON per request on stdin and per answer on stdout."""

import json
import math
import os
import sys
import time

import torch
import torch.nn.functional as F

from pytorch_lora import prepare_lora

THREADS = int(sys.argv[1])
torch.set_num_threads(THREADS)
SHAPE = json.loads(os.environ["BENCH_SHAPE"])


def answer(**fields):
    print(json.dumps(fields), flush=True)


def prepare_matmul(layout, n):
    a, b = torch.randn(n, n), torch.randn(n, n)

    def run():
        left = a.t() if layout == "TN" else a
        right = b.t() if layout == "NT" else b
        return left @ right

    return run


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.proj = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.fc, self.out = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x, mask):
        batch, seq, width = x.shape
        q, k, v = (
            part.view(batch, seq, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.ln1(x)).split(width, dim=2)
        )
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        attended = scores.masked_fill(mask, float("-inf")).softmax(-1) @ v
        x = x + self.proj(attended.transpose(1, 2).reshape(batch, seq, width))
        return x + self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


def init(module):
    """GPT-2's initial weights. With PyTorch's own, N(0, 1), a tied head's probabilities are denormal numbers,
    with which a product takes ten times as long on Intel's processors (124M: 29 s a step in place of 3.8)."""
    if isinstance(module, (torch.nn.Linear, torch.nn.Embedding)):
        torch.nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, torch.nn.Linear):
        torch.nn.init.zeros_(module.bias)


def prepare_step():
    width, vocab, seq = SHAPE["width"], SHAPE["vocab"], SHAPE["seq"]
    wte, wpe = torch.nn.Embedding(vocab, width), torch.nn.Embedding(seq, width)
    blocks = torch.nn.ModuleList(Block(width, SHAPE["heads"]) for _ in range(SHAPE["layers"]))
    norm = torch.nn.LayerNorm(width)
    for module in (wte, wpe, *blocks.modules()):
        init(module)
    parameters = [p for m in (wte, wpe, blocks, norm) for p in m.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    ids = torch.randint(vocab, (SHAPE["batch"], seq + 1))
    mask = torch.triu(torch.ones(seq, seq, dtype=torch.bool), 1)

    def run():
        x = wte(ids[:, :-1]) + wpe(torch.arange(seq))
        for block in blocks:
            x = block(x, mask)
        logits = norm(x) @ wte.weight.t()
        loss = F.cross_entropy(logits.view(-1, vocab), ids[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return run


run = None
answer(ready=f"PyTorch {torch.__version__} cpu, {THREADS} thread{'s' if THREADS > 1 else ''}")
for line in sys.stdin:
    request = json.loads(line)
    prepare = request.get("prepare")
    if prepare is not None:
        task = prepare["task"]
        if task == "lora":
            run = prepare_lora(prepare)
        else:
            run = prepare_step() if task == "step" else prepare_matmul(prepare["layout"], prepare["n"])
        run()
        answer(id=request["id"])
        continue
    start, processor = time.perf_counter(), time.process_time()
    for _ in range(request["repetitions"]):
        run()
    each = 1000 / request["repetitions"]
    processor = (time.process_time() - processor) * each
    answer(id=request["id"], ms=(time.perf_counter() - start) * each, processorMs=processor)
