"""Makes the reference values for encoders.

Run:  OMP_WAIT_POLICY=PASSIVE /usr/bin/python3 tooling/reference/encoders.py
It needs Debian's python3-torch (1.13) and nothing else, and takes about ten seconds.
It reads data/tiny/text.txt and writes data/encoders/expected.json. For each model it writes config.json,
model.safetensors (its weights) and expected.safetensors (what a call gives for two rows, and every gradient of the
mean loss of these rows, computed in float64).
It was written from the papers (BERT, GELU, layer normalization) and the configurations of the Hub. Nothing of this
project runs here.
"""

import json
import math

import torch
import torch.nn.functional as F

from generate import BETA1, BETA2, COSINE, EPS, HERE, SEQ, TEXT, case_of, gelu_new, one_list_a_line, rows_at
from generate import write_safetensors

OUT = HERE.parent / "encoders"
CASE = dict(COSINE, batch=4)
ROWS = 2
PRECISIONS = {"rows": ("fp32", "bf16", "fp16"), "pooled": ("fp32",)}

COMMON = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": 256,
    "num_hidden_layers": 2,
    "max_position_embeddings": 40,
    "initializer_range": 0.02,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
}

# One has no pooler and one token type for all, as a model whose rows are averaged. The other is
# called as a classifier of pairs is: with two types, for its pooler's row.
MODELS = {
    "rows": {
        "hidden_size": 24,
        "intermediate_size": 44,
        "num_attention_heads": 3,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 2,
    },
    "pooled": {
        "hidden_size": 20,
        "intermediate_size": 28,
        "num_attention_heads": 5,
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-5,
        "type_vocab_size": 3,
    },
}


def make_weights(config, has_pooler, seed):
    """Draws weights that are spread widely enough for losses to move in 20 steps. No bias or gain has its default."""
    gen = torch.Generator().manual_seed(seed)
    d, inner = config["hidden_size"], config["intermediate_size"]
    weights = {}

    def normal(name, *shape, std=0.15, mean=0.0):
        weights[name] = torch.randn(*shape, generator=gen) * std + mean

    def linear(name, rows, cols):
        normal(name + ".weight", rows, cols)
        normal(name + ".bias", rows, std=0.1)

    def norm(name):
        normal(name + ".LayerNorm.weight", d, std=0.1, mean=1.0)
        normal(name + ".LayerNorm.bias", d, std=0.1)

    for table, rows in (("word", "vocab_size"), ("position", "max_position_embeddings"), ("token_type", "type_vocab_size")):
        normal(f"embeddings.{table}_embeddings.weight", config[rows], d)
    norm("embeddings")
    for i in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{i}."
        for part in ("query", "key", "value"):
            linear(at + "attention.self." + part, d, d)
        linear(at + "attention.output.dense", d, d)
        norm(at + "attention.output")
        linear(at + "intermediate.dense", inner, d)
        linear(at + "output.dense", d, inner)
        norm(at + "output")
    if has_pooler:
        linear("pooler.dense", d, d)
    return weights


def types_of(config, tokens):
    """The types of two texts that share a row: 1 for its first third, 2 for the rest."""
    places = torch.arange(tokens.shape[1])
    return ((places >= tokens.shape[1] // 3) + 1).expand(tokens.shape)


def output_of(config, ar, p, tokens):
    """tokens [batch, seq] -> rows [batch, seq, width], or the pooler's [batch, width] where there is one."""
    batch, seq = tokens.shape
    d, heads = config["hidden_size"], config["num_attention_heads"]
    activation = {"gelu": F.gelu, "gelu_new": gelu_new}[config["hidden_act"]]
    has_pooler = "pooler.dense.weight" in p

    def norm(x, name):
        gain, bias = p[name + ".LayerNorm.weight"], p[name + ".LayerNorm.bias"]
        return ar.op(lambda x, w, b: F.layer_norm(x, (d,), w, b, config["layer_norm_eps"]), x, gain, bias)

    def linear(x, name, residual=None):
        weight, bias = p[name + ".weight"], p[name + ".bias"]
        if residual is None:
            return ar.op(lambda x, w, b: x @ w.t() + b, x, weight, bias)
        return ar.op(lambda x, w, b, r: x @ w.t() + b + r, x, weight, bias, residual)

    def heads_first(x):
        return x.view(batch, seq, heads, d // heads).transpose(1, 2)

    def attend(q, k, v):  # one op: scores and weights are never stored
        return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(d // heads), dim=-1) @ v

    def rows(ids, name):
        return ar.op(lambda w: F.embedding(ids, w), p[f"embeddings.{name}_embeddings.weight"])

    types = types_of(config, tokens) if has_pooler else torch.zeros_like(tokens)
    places = torch.arange(seq).expand(batch, seq)
    added = ar.op(torch.add, rows(places, "position"), rows(types, "token_type"))
    x = norm(ar.op(torch.add, rows(tokens, "word"), added), "embeddings")
    for i in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{i}."
        q, k, v = (heads_first(linear(x, at + "attention.self." + part)) for part in ("query", "key", "value"))
        mixed = ar.op(attend, q, k, v).transpose(1, 2).reshape(batch, seq, d)
        x = norm(linear(mixed, at + "attention.output.dense", x), at + "attention.output")
        hidden = ar.op(activation, linear(x, at + "intermediate.dense"))
        x = norm(linear(hidden, at + "output.dense", x), at + "output")
    return ar.op(torch.tanh, linear(x[:, 0], "pooler.dense")) if has_pooler else x


def targets_of(output, tokens):
    """What a model learns: sines that follow from a token (a row's first one for pooled rows) and a column."""
    chosen = tokens if output.dim() == 3 else tokens[:, 0]
    columns = torch.arange(output.shape[-1], dtype=torch.float64)
    return torch.sin(chosen.double()[..., None] * 0.37 + columns).to(output.dtype)


def loss_of_model(config):
    def loss_of(ar, p, tokens, _targets):
        output = output_of(config, ar, p, tokens)
        return ar.into_f32(lambda out: (out - targets_of(out, tokens)).square().mean(), output)

    return loss_of


class Exact:
    """The Arithmetic of generate.py without any rounding."""

    def op(self, f, *args):
        return f(*args)

    into_f32 = op


def write_expected(path, config, weights, data):
    params = {k: v.double().requires_grad_() for k, v in weights.items()}
    tokens, _ = rows_at(data, 0, ROWS)
    output = output_of(config, Exact(), params, tokens)
    loss = loss_of_model(config)(Exact(), params, tokens, None)
    gradients = torch.autograd.grad(loss, list(params.values()))
    expected = {"output": output.detach()} | {f"gradient.{k}": g for k, g in zip(params, gradients)}
    write_safetensors(path, {k: v.float() for k, v in expected.items()})
    return loss.item()


def main():
    data = torch.tensor(list((HERE / TEXT).read_bytes()))
    cases, by_name, losses = [], {}, {}
    for seed, (name, own) in enumerate(MODELS.items()):
        config = {**COMMON, **own}
        path = OUT / name
        path.mkdir(parents=True, exist_ok=True)
        weights = make_weights(config, name == "pooled", 20261125 + seed)
        (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        write_safetensors(path / "model.safetensors", weights)
        losses[name] = write_expected(path / "expected.safetensors", config, weights, data)
        for precision in PRECISIONS[name]:
            flags = {"batch": CASE["batch"], "weightDecay": CASE["weight_decay"], "clip": CASE["clip"]}
            flags |= {"betas": [BETA1, BETA2], "eps": EPS}
            entry = case_of(
                f"{name}-{precision}", precision, CASE, weights, data, flags, by_name, loss_of_model(config)
            )
            cases.append({"model": name, **entry})
    document = {
        "made": "tooling/reference/encoders.py",
        "torch": torch.__version__,
        "seq": SEQ,
        "rows": ROWS,
        "rowLosses": losses,
        "cases": cases,
    }
    (OUT / "expected.json").write_text(one_list_a_line(document) + "\n")


if __name__ == "__main__":
    main()
