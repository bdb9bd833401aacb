"""Makes the reference values of the tiny GPT-2, which the trainer's tests compare runs with.

Run:  OMP_WAIT_POLICY=PASSIVE /usr/bin/python3 tooling/reference/generate.py
It needs Debian's python3-torch (1.13) and nothing else, and takes about ten seconds.
It reads data/tiny/text.txt and writes letter.txt, config.json, model.safetensors and expected.json beside it.
The values are computed independently by PyTorch's ops, autograd and AdamW. Nothing of this project runs here.
"""

import json
import math
import pathlib
import struct
import sys

import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).resolve().parent / "data" / "tiny"
STEPS = 20
SEQ = 32

CONFIG = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 256,
    "n_positions": 64,
    "n_embd": 96,
    "n_layer": 2,
    "n_head": 4,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.02,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "tie_word_embeddings": True,
}

# Each entry is a command line. The batch is a multiple of ranks * accum for 1, 2, 3 and 4 ranks.
# "plain" has neither clipping nor a schedule. "cosine" has both, with gradient norms below and
# above the clip, so that each case occurs.
PLAIN = dict(batch=12, accum=1, lr=1e-3, weight_decay=0.1, clip=0.0, schedule="constant", warmup=0)
COSINE = dict(batch=12, accum=1, lr=3e-3, weight_decay=0.1, clip=1.0, schedule="cosine", warmup=4)
ACCUM = dict(COSINE, batch=24, accum=2)
TEXT = "text.txt"
# A text of one letter, in which all rows push the same way, so that the gradients of the table
# overflow in f16 at the first two loss scales. They come in two parts, from the lookup and from the
# logits. With "t" each part alone exceeds the largest f16 by a factor of 1.28 at the second scale,
# and both together reach 0.76 of it at the third. So an engine that adds the parts in f32 skips the
# same steps.
LETTER, LETTERS = "letter.txt", b"t" * 300
CASES = [
    (f"{name}-{precision}", precision, case, TEXT)
    for name, case in (("plain", PLAIN), ("cosine", COSINE), ("accum", ACCUM))
    for precision in ("fp32", "bf16", "fp16")
] + [(f"overflow-{precision}", precision, dict(PLAIN, warmup=4), LETTER) for precision in ("fp32", "fp16")]
BETA1, BETA2, EPS = 0.9, 0.95, 1e-8
STORAGE = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
# Dynamic loss scaling as in PyTorch's GradScaler.
INITIAL_SCALE, GROWTH_INTERVAL = 65536.0, 2000


# ---- rounding where a 16-bit engine rounds ----------------------------------------------------
# Each op computes in f32 on 16-bit values and rounds its output once. Backward does likewise: the
# gradient that leaves an op is rounded, and so is the sum of the gradients of several consumers.


def rounder(dtype, forward, backward):
    """A function that rounds to `dtype`: values in forward, gradients in backward, or both."""

    class Round(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.to(dtype).to(x.dtype) if forward else x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad.to(dtype).to(grad.dtype) if backward else grad

    return Round.apply


class Arithmetic:
    """Ops at one precision: `op(f, *args)` computes f and rounds its inputs' gradients and its output."""

    def __init__(self, storage):
        self.storage = storage
        if storage is not None:
            self.both = rounder(storage, True, True)
            self.grad_only = rounder(storage, False, True)

    def op(self, f, *args):
        if self.storage is None:
            return f(*args)
        return self.both(f(*[self.grad_only(a) for a in args]))

    def leaf(self, p):
        return p if self.storage is None else self.both(p)

    def into_f32(self, f, *args):
        """An op with 16-bit operands and an f32 result, such as head and loss, whose logits are never stored."""
        return f(*args) if self.storage is None else f(*[self.grad_only(a) for a in args])


# ---- model ------------------------------------------------------------------------------------


def make_weights():
    """Draws weights that are spread widely enough for losses to move in 20 steps. No bias or gain has its default."""
    gen = torch.Generator().manual_seed(20261121)
    v, t, d, layers = (CONFIG[k] for k in ("vocab_size", "n_positions", "n_embd", "n_layer"))

    def normal(*shape, std, mean=0.0):
        return torch.randn(*shape, generator=gen) * std + mean

    residual = 0.1 / math.sqrt(2 * layers)
    weights = {"transformer.wte.weight": normal(v, d, std=0.1)}
    weights["transformer.wpe.weight"] = normal(t, d, std=0.05)
    for i in range(layers):
        at = f"transformer.h.{i}."
        weights[at + "ln_1.weight"] = normal(d, std=0.1, mean=1.0)
        weights[at + "ln_1.bias"] = normal(d, std=0.05)
        weights[at + "attn.c_attn.weight"] = normal(d, 3 * d, std=0.1)
        weights[at + "attn.c_attn.bias"] = normal(3 * d, std=0.05)
        weights[at + "attn.c_proj.weight"] = normal(d, d, std=residual)
        weights[at + "attn.c_proj.bias"] = normal(d, std=0.05)
        weights[at + "ln_2.weight"] = normal(d, std=0.1, mean=1.0)
        weights[at + "ln_2.bias"] = normal(d, std=0.05)
        weights[at + "mlp.c_fc.weight"] = normal(d, 4 * d, std=0.1)
        weights[at + "mlp.c_fc.bias"] = normal(4 * d, std=0.05)
        weights[at + "mlp.c_proj.weight"] = normal(4 * d, d, std=residual)
        weights[at + "mlp.c_proj.bias"] = normal(d, std=0.05)
    weights["transformer.ln_f.weight"] = normal(d, std=0.1, mean=1.0)
    weights["transformer.ln_f.bias"] = normal(d, std=0.05)
    return weights


def gelu_new(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def loss_of(ar, p, tokens, targets):
    """The mean loss of targets [batch, seq] after tokens [batch, seq]. p has the parameters at compute precision."""
    batch, seq = tokens.shape
    d, heads = CONFIG["n_embd"], CONFIG["n_head"]
    mask = torch.full((seq, seq), float("-inf")).triu(1)

    def norm(x, name):
        return ar.op(lambda x, w, b: F.layer_norm(x, (d,), w, b, 1e-5), x, p[name + ".weight"], p[name + ".bias"])

    def conv1d(x, name):  # weight [in, out]
        return ar.op(lambda x, w, b: x @ w + b, x, p[name + ".weight"], p[name + ".bias"])

    def heads_first(x):
        return x.view(batch, seq, heads, d // heads).transpose(1, 2)

    def attend(q, k, v):  # one op: scores and weights are never stored
        scores = q @ k.transpose(-1, -2) / math.sqrt(d // heads)
        return torch.softmax(scores + mask, dim=-1) @ v

    add = lambda a, b: ar.op(torch.add, a, b)
    x = add(
        ar.op(lambda w: F.embedding(tokens, w), p["transformer.wte.weight"]),
        ar.op(lambda w: w[:seq].expand(batch, seq, d), p["transformer.wpe.weight"]),
    )
    for i in range(CONFIG["n_layer"]):
        at = f"transformer.h.{i}."
        q, k, v = (heads_first(part) for part in conv1d(norm(x, at + "ln_1"), at + "attn.c_attn").split(d, dim=2))
        mixed = ar.op(attend, q, k, v).transpose(1, 2).reshape(batch, seq, d)
        x = add(x, conv1d(mixed, at + "attn.c_proj"))
        hidden = ar.op(gelu_new, conv1d(norm(x, at + "ln_2"), at + "mlp.c_fc"))
        x = add(x, conv1d(hidden, at + "mlp.c_proj"))
    head = lambda x, w: F.cross_entropy((x @ w.t()).reshape(batch * seq, -1), targets.reshape(-1))
    return ar.into_f32(head, norm(x, "transformer.ln_f"), p["transformer.wte.weight"])


# ---- training ---------------------------------------------------------------------------------


def rows_at(data, step, batch):
    """Inputs and targets of a step with --order sequential, [batch, seq] each."""
    starts = [((step * batch + i) * SEQ) % (len(data) - SEQ - 1) for i in range(batch)]
    return (
        torch.stack([data[s : s + SEQ] for s in starts]),
        torch.stack([data[s + 1 : s + 1 + SEQ] for s in starts]),
    )


def lr_at(case, s):
    lr, w = case["lr"], case["warmup"]
    if s < w:
        return lr * (s + 1) / w
    if case["schedule"] == "constant":
        return lr
    return lr / 2 * (1 + math.cos(math.pi * (s - w) / (STEPS - w)))


def run(case, precision, weights, data, ranks=1, dtype=torch.float32, loss_of=loss_of, rows_at=rows_at):
    """Trains STEPS steps. `ranks` divides the rows as ranks do, each of which has 16-bit gradients of its own."""
    params = {k: v.clone().to(dtype).requires_grad_() for k, v in weights.items()}
    ar = Arithmetic(STORAGE[precision])
    groups = [
        {"params": [p for p in params.values() if p.dim() >= 2], "weight_decay": case["weight_decay"]},
        {"params": [p for p in params.values() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=case["lr"], betas=(BETA1, BETA2), eps=EPS)
    scale = INITIAL_SCALE if precision == "fp16" else 1.0
    updates, clean = 0, 0
    log = {"losses": [], "gradNorms": [], "lrs": [], "lossScales": [], "skipped": []}
    parts = ranks * case["accum"]
    for step in range(STEPS):
        inputs, targets = rows_at(data, step, case["batch"])
        grads = {k: torch.zeros_like(p) for k, p in params.items()}
        loss_sum = 0.0
        for x, y in zip(inputs.chunk(parts), targets.chunk(parts)):
            leaves = {k: ar.leaf(p) for k, p in params.items()}
            loss = loss_of(ar, leaves, x, y)
            part = torch.autograd.grad(loss / case["accum"] * scale, list(params.values()))
            for k, g in zip(params, part):
                grads[k] += g / ranks
            loss_sum += loss.item() / parts
        norm = math.sqrt(sum((g.double() / scale).square().sum().item() for g in grads.values()))
        finite = math.isfinite(norm)
        lr = lr_at(case, updates)
        log["losses"].append(loss_sum)
        log["gradNorms"].append(norm if finite else None)
        log["lrs"].append(lr)
        log["lossScales"].append(scale)
        log["skipped"].append(not finite)
        if not finite:  # the step counts in the log only
            scale, clean = scale / 2, 0
            continue
        factor = min(1.0, case["clip"] / (norm + 1e-6)) if case["clip"] > 0 else 1.0
        for k, p in params.items():
            p.grad = grads[k] / scale * factor
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        updates, clean = updates + 1, clean + 1
        if precision == "fp16" and clean == GROWTH_INTERVAL:
            scale, clean = scale * 2, 0
    return log


# ---- files ------------------------------------------------------------------------------------


def write_safetensors(path, weights):
    """Writes the header's length (u64), the JSON header padded with spaces to 8 bytes, and the tensors' bytes."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, w in weights.items():
        end = offset + w.numel() * 4
        header[name] = {"dtype": "F32", "shape": list(w.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)))
        f.write(text)
        for w in weights.values():
            f.write(w.contiguous().numpy().astype("<f4").tobytes())


def flags_of(precision, case, text, model="tiny"):
    """The trainer's command line for a case, relative to the root of the repository."""
    data = "tooling/reference/data/tiny"
    return (
        f"--model tooling/reference/data/{model} --tokenizer byte --data {data}/{text} --order sequential --dropout 0"
        f" --batch {case['batch']} --grad-accum {case['accum']} --seq {SEQ} --steps {STEPS}"
        f" --lr {case['lr']} --weight-decay {case['weight_decay']} --clip {case['clip']:g}"
        f" --beta1 {BETA1} --beta2 {BETA2} --eps {EPS} --schedule {case['schedule']}"
        f" --warmup {case['warmup']} --precision {precision}"
    ).split()


def rounded(values):
    return [v if v is None or isinstance(v, bool) else float(f"{v:.9g}") for v in values]


def one_list_a_line(document):
    fields = [f'"{k}": {json.dumps(v)}' for k, v in document.items() if k != "cases"]
    cases = [
        "  {\n" + ",\n".join(f'    "{k}": {json.dumps(v)}' for k, v in case.items()) + "\n  }"
        for case in document["cases"]
    ]
    return "{\n " + ", ".join(fields) + ',\n "cases": [\n' + ",\n".join(cases) + "\n]}"


def relative(a, b):
    return max(abs(x - y) / abs(y) for x, y in zip(a, b))


def case_of(name, precision, case, weights, data, flags, by_name, loss_of=loss_of, rows_at=rows_at):
    """One entry of expected.json. Prints to stderr how much rounding alone changes its losses."""
    own = dict(loss_of=loss_of, rows_at=rows_at)
    log = by_name[name] = run(case, precision, weights, data, **own)
    entry = {"name": name, "precision": precision, "flags": flags}
    entry.update({k: rounded(v) for k, v in log.items()})
    if precision == "fp32":
        exact = run(case, precision, weights, data, dtype=torch.float64, **own)
        note = f"float64 {relative(log['losses'], exact['losses']):.1e}"
    else:
        split = run(case, precision, weights, data, ranks=4, **own)
        plain = by_name[name.split("-")[0] + "-fp32"]
        note = (
            f"4 ranks {relative(split['losses'], log['losses']):.1e}, "
            f"fp32 {relative(log['losses'], plain['losses']):.1e}, skipped {sum(log['skipped'])}"
        )
    print(f"{name}: {log['losses'][0]:.4f} -> {log['losses'][-1]:.4f}; {note}", file=sys.stderr)
    return entry


def main():
    weights = make_weights()
    (HERE / LETTER).write_bytes(LETTERS)
    (HERE / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    write_safetensors(HERE / "model.safetensors", weights)
    cases, by_name = [], {}
    for name, precision, case, text in CASES:
        data = torch.tensor(list((HERE / text).read_bytes()))
        cases.append(case_of(name, precision, case, weights, data, flags_of(precision, case, text), by_name))
    document = {"made": "tooling/reference/generate.py", "torch": torch.__version__, "cases": cases}
    (HERE / "expected.json").write_text(one_list_a_line(document) + "\n")


if __name__ == "__main__":
    main()
