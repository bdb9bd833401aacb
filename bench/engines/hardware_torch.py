"""PyTorch for bench/hardware.mjs, `hardware_torch.py cuda|cpu [compiled]`. Requests and answers are lines of JSON.

f32 does not use TF32. GPT-2 and Llama are written as people write them today, with scaled_dot_product_attention if
this version of PyTorch has it.
"""

import json
import math
import sys
import time
from contextlib import nullcontext

import torch
import torch.nn.functional as F

DEVICE, IS_COMPILED = sys.argv[1], "compiled" in sys.argv[2:]
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
GradScaler = torch.amp.GradScaler if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False


def answer(**fields):
    print(json.dumps(fields), flush=True)


def draw(*shape, precision):
    return torch.randn(*shape, device=DEVICE, dtype=torch.float32).to(DTYPES[precision])


def compiled(function):
    return torch.compile(function) if IS_COMPILED else function


def attend(q, k, v):
    """Causal attention over [batch, heads, seq, dim]. Keys and values may have fewer heads."""
    group = q.shape[1] // k.shape[1]
    if group > 1:
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    seq = q.shape[2]
    mask = torch.full((seq, seq), float("-inf"), device=q.device, dtype=q.dtype).triu(1)
    return torch.softmax(q @ k.transpose(2, 3) / math.sqrt(q.shape[3]) + mask, dim=-1) @ v


def prepare_product(m, n, k, layout, precision):
    a = draw(*((k, m) if layout[0] == "T" else (m, k)), precision=precision)
    b = draw(*((n, k) if layout[1] == "T" else (k, n)), precision=precision)
    left, right = (a.t() if layout[0] == "T" else a), (b.t() if layout[1] == "T" else b)
    return lambda: left @ right


def prepare_attention(batch, heads, kvHeads, seq, dim, precision, isBackward):
    q = draw(batch, heads, seq, dim, precision=precision)
    k, v = (draw(batch, kvHeads, seq, dim, precision=precision) for _ in range(2))
    function = compiled(attend)
    if not isBackward:
        return lambda: function(q, k, v)
    for tensor in (q, k, v):
        tensor.requires_grad_()
    seed = draw(batch, heads, seq, dim, precision=precision)
    return lambda: torch.autograd.grad(function(q, k, v), (q, k, v), seed)


def prepare_copy(bytes):
    x = draw(bytes // 4, precision="fp32")
    return lambda: x.clone()


class GptBlock(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        width, self.heads = config["n_embd"], config["n_head"]
        self.ln1, self.ln2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.proj = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.fc, self.out = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        batch, seq, width = x.shape
        parts = self.qkv(self.ln1(x)).split(width, dim=2)
        q, k, v = (part.view(batch, seq, self.heads, -1).transpose(1, 2) for part in parts)
        x = x + self.proj(attend(q, k, v).transpose(1, 2).reshape(batch, seq, width))
        return x + self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))


class Gpt2(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        width = config["n_embd"]
        self.wte = torch.nn.Embedding(config["vocab_size"], width)
        self.wpe = torch.nn.Embedding(config["n_positions"], width)
        self.blocks = torch.nn.ModuleList(GptBlock(config) for _ in range(config["n_layer"]))
        self.norm = torch.nn.LayerNorm(width)
        self.apply(small)

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(F.linear(self.norm(x), self.wte.weight).flatten(0, 1).float(), targets.flatten())


class RmsNorm(torch.nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


class LlamaBlock(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        width, inner = config["hidden_size"], config["intermediate_size"]
        heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
        self.dim = config.get("head_dim") or width // heads
        self.norm1, self.norm2 = (RmsNorm(width, config["rms_norm_eps"]) for _ in range(2))
        linear = lambda cols, rows: torch.nn.Linear(cols, rows, bias=False)
        self.q, self.o = linear(width, heads * self.dim), linear(heads * self.dim, width)
        self.k, self.v = (linear(width, kv * self.dim) for _ in range(2))
        self.gate, self.up = (linear(width, inner) for _ in range(2))
        self.down = linear(inner, width)

    def forward(self, x, cos, sin):
        batch, seq, _ = x.shape
        normed = self.norm1(x)
        q, k, v = (f(normed).view(batch, seq, -1, self.dim).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        x = x + self.o(attend(q, k, v.to(q.dtype)).transpose(1, 2).reshape(batch, seq, -1))
        normed = self.norm2(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Llama(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        width = config["hidden_size"]
        self.table = torch.nn.Embedding(config["vocab_size"], width)
        self.blocks = torch.nn.ModuleList(LlamaBlock(config) for _ in range(config["num_hidden_layers"]))
        self.norm = RmsNorm(width, config["rms_norm_eps"])
        self.theta = config["rope_theta"]
        self.apply(small)

    def forward(self, ids, targets):
        seq, dim = ids.shape[1], self.blocks[0].dim
        frequencies = self.theta ** (-torch.arange(0, dim, 2, device=ids.device) / dim)
        angles = torch.arange(seq, device=ids.device)[:, None] * frequencies
        x = self.table(ids)
        cos, sin = (torch.cat([each, each], dim=-1) for each in (angles.cos(), angles.sin()))
        for block in self.blocks:
            x = block(x, cos, sin)
        return F.cross_entropy(F.linear(self.norm(x), self.table.weight).flatten(0, 1).float(), targets.flatten())


def turned(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return (x * cos + torch.cat([-b, a], dim=-1) * sin).to(x.dtype)


def small(module):
    if isinstance(module, (torch.nn.Linear, torch.nn.Embedding)):
        torch.nn.init.normal_(module.weight, std=0.02)


def prepare_train(config, batch, seq, precision):
    model = (Gpt2 if config["model_type"] == "gpt2" else Llama)(config).to(DEVICE)
    forward = compiled(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(config["vocab_size"], (batch, seq + 1), device=DEVICE)
    scaler = GradScaler(enabled=precision == "fp16" and DEVICE == "cuda")

    def run():
        with nullcontext() if precision == "fp32" else torch.autocast(DEVICE, dtype=DTYPES[precision]):
            loss = forward(ids[:, :-1], ids[:, 1:])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return run


PREPARE = {"product": prepare_product, "attention": prepare_attention, "copy": prepare_copy, "train": prepare_train}


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def serve(request, state):
    prepare = request.get("prepare")
    if prepare is not None:
        state["run"] = None
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
        task = prepare.pop("task")
        state["run"] = PREPARE[task](**prepare)
        state["run"]()
        synchronize()
        return {}
    start, processor = time.perf_counter(), time.process_time()
    for _ in range(request["repetitions"]):
        state["run"]()
    synchronize()
    each = 1000 / request["repetitions"]
    return {"ms": (time.perf_counter() - start) * each, "processorMs": (time.process_time() - processor) * each}


name = torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu"
answer(ready=f"PyTorch {torch.__version__} {'compiled' if IS_COMPILED else 'eager'} ({name})")
state = {}
for line in sys.stdin:
    request = json.loads(line)
    try:
        answer(id=request["id"], **serve(request, state))
    except Exception as error:
        answer(id=request["id"], error=f"{type(error).__name__}: {error}".splitlines()[0][:300])
