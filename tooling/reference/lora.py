"""Makes the reference values for adapters beside a frozen decoder.

Run:  OMP_WAIT_POLICY=PASSIVE /usr/bin/python3 tooling/reference/lora.py
It needs Debian's python3-torch (1.13) and nothing else, and takes about a minute.
It reads data/tiny/text.txt and draws the models of decoders.py again, whose files are in data/decoders. It writes
data/lora/expected.json. For each model it writes the adapters with which training begins, as PEFT's directory has
them (adapter_config.json, adapter_model.safetensors), and expected.safetensors: other adapters, which are not zero,
with each one's gradient of the mean loss of a row, computed in float64.
It was written from the paper (Hu et al., "LoRA", 2021): y = W x + b + alpha / r * B (A x). Nothing of this project runs here.
"""

import json
import math

import torch

from decoders import MODELS, Exact, loss_of_model, make_weights, with_common
from generate import COSINE, HERE, TEXT, case_of, flags_of, one_list_a_line, rows_at, write_safetensors

OUT = HERE.parent / "lora"
# The rank is odd and alpha / rank is no power of two, so a scale that is omitted, inverted or
# squared shows.
RANK, ALPHA = 3, 7.0
CASE = dict(COSINE, lr=1e-2)
PRECISIONS = {"llama": ("fp32", "bf16"), "qwen2": ("fp32",), "qwen3": ("fp32", "bf16"), "gemma3": ("fp32",)}


def make_adapters(weights, seed, is_zero):
    """Draws the adapters of every linear layer: A uniform in +-1/sqrt(in), and B zero or small."""
    gen = torch.Generator().manual_seed(seed)
    adapters = {}
    for name, weight in weights.items():
        if not name.endswith("_proj.weight"):
            continue
        rows, cols = weight.shape
        path = name[: -len(".weight")]
        adapters[path + ".lora_A.weight"] = (torch.rand(RANK, cols, generator=gen) * 2 - 1) / math.sqrt(cols)
        other = torch.randn(rows, RANK, generator=gen) * 0.1
        adapters[path + ".lora_B.weight"] = torch.zeros(rows, RANK) if is_zero else other
    return adapters


def beside(ar, p, x, name, y):
    """Computes an adapted layer. Each product, the scale and the sum are ops, whose results are rounded in 16 bits."""
    narrow = ar.op(lambda x, a: x @ a.t(), x, p[name + ".lora_A.weight"])
    scaled = ar.op(lambda narrow: narrow * (ALPHA / RANK), narrow)
    wide = ar.op(lambda scaled, b: scaled @ b.t(), scaled, p[name + ".lora_B.weight"])
    return ar.op(torch.add, y, wide)


def loss_beside(config, weights):
    """A loss as a function of the adapters. The base is a constant at the same compute precision."""
    of_all = loss_of_model(config, beside)

    def loss_of(ar, adapters, tokens, targets):
        dtype = next(iter(adapters.values())).dtype
        base = {k: w.to(dtype) if ar.storage is None else ar.leaf(w.to(dtype)) for k, w in weights.items()}
        return of_all(ar, {**base, **adapters}, tokens, targets)

    return loss_of


def write_gradients(path, config, weights, data, adapters):
    params = {k: v.double().requires_grad_() for k, v in adapters.items()}
    tokens, targets = rows_at(data, 0, 1)
    loss = loss_beside(config, weights)(Exact(), params, tokens, targets)
    gradients = torch.autograd.grad(loss, list(params.values()))
    expected = {**adapters, **{f"gradient.{k}": g.float() for k, g in zip(params, gradients)}}
    write_safetensors(path, expected)
    return loss.item()


def peft_config(weights):
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "target_modules": sorted({k.split(".")[-2] for k in weights if k.endswith("_proj.weight")}),
        "bias": "none",
        "fan_in_fan_out": False,
    }


def main():
    data = torch.tensor(list((HERE / TEXT).read_bytes()))
    cases, by_name, rows = [], {}, {}
    for seed, (name, own) in enumerate(MODELS.items()):
        if name not in PRECISIONS:
            continue
        config = with_common(own)
        path = OUT / name
        path.mkdir(parents=True, exist_ok=True)
        weights = make_weights(config, 20261122 + seed)
        first = make_adapters(weights, 1 + seed, is_zero=True)
        (path / "adapter_config.json").write_text(json.dumps(peft_config(weights), indent=2) + "\n")
        write_safetensors(path / "adapter_model.safetensors", {f"base_model.model.{k}": v for k, v in first.items()})
        spread = make_adapters(weights, 101 + seed, is_zero=False)
        rows[name] = write_gradients(path / "expected.safetensors", config, weights, data, spread)
        for precision in PRECISIONS[name]:
            flags = flags_of(precision, CASE, TEXT, model=f"decoders/{name}")
            flags += ["--adapter", f"tooling/reference/data/lora/{name}"]
            entry = case_of(
                f"lora.{name}-{precision}", precision, CASE, first, data, flags, by_name, loss_beside(config, weights)
            )
            cases.append(entry)
    document = {
        "made": "tooling/reference/lora.py",
        "torch": torch.__version__,
        "rank": RANK,
        "alpha": ALPHA,
        "rowLosses": rows,
        "cases": cases,
    }
    (OUT / "expected.json").write_text(one_list_a_line(document) + "\n")


if __name__ == "__main__":
    main()
