"""Makes the reference values for the families of decoders.

Run:  OMP_WAIT_POLICY=PASSIVE /usr/bin/python3 tooling/reference/decoders.py
It needs Debian's python3-torch (1.13) and nothing else, and takes about a minute.
It reads data/tiny/text.txt and writes data/decoders/expected.json. For each model it writes config.json,
model.safetensors (its weights) and expected.safetensors (the logits of a row, and every gradient of the mean
loss of that row, computed in float64).
It was written from the papers (RMSNorm, RoPE, SwiGLU, grouped-query attention), the published reference code of
Llama 3.1's frequency scaling, and the configurations of the Hub. Nothing of this project runs here.
"""

import json
import math

import torch
import torch.nn.functional as F

from generate import COSINE, HERE, SEQ, TEXT, case_of, flags_of, one_list_a_line, rows_at, write_safetensors

OUT = HERE.parent / "decoders"
PRECISIONS = ("fp32", "bf16", "fp16")

COMMON = {
    "vocab_size": 256,
    "num_hidden_layers": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 64,
    "initializer_range": 0.02,
    "attention_dropout": 0.0,
    "use_cache": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

# The models have odd numbers of heads, groups of one, two and three, and heads that together are
# narrower or wider than the model.
MODELS = {
    # With 128 original positions the second of four frequencies (a turn in 63 tokens) is between
    # the two bands.
    "llama": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
    },
    "biased": {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 20,
        "intermediate_size": 36,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "rms_norm_eps": 1e-6,
        "rope_theta": 100000.0,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "qwen2": {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "use_sliding_window": False,
        "sliding_window": 32768,
        "max_window_layers": 21,
        "tie_word_embeddings": True,
    },
    "qwen3": {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 20,
        "intermediate_size": 28,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 6,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "rope_scaling": None,
        "attention_bias": False,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": 28,
        "tie_word_embeddings": False,
    },
    # The second layer has no positions, where the interval would give both of them some.
    "smollm3": {
        "model_type": "smollm3",
        "architectures": ["SmolLM3ForCausalLM"],
        "hidden_size": 24,
        "intermediate_size": 36,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 5000000.0,
        "rope_scaling": None,
        "no_rope_layers": [1, 0],
        "no_rope_layer_interval": 4,
        "use_sliding_window": False,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
    },
    # The first and the last layer see five tokens, and turn heads by a theta of their own.
    "gemma3": {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 20,
        "intermediate_size": 36,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "query_pre_attn_scalar": 10,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 5,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "cache_implementation": "hybrid",
    },
}


def is_gemma(config):
    return config["model_type"] == "gemma3_text"


def with_common(own):
    """A model's fields, and those of all that it does not set itself. Gemma has another name for its activation."""
    others = {k: v for k, v in COMMON.items() if k not in own and not (k == "hidden_act" and is_gemma(own))}
    return {**own, **others}


def head_dim_of(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


HEAD_NORMS = ("qwen3", "gemma3_text")


def make_weights(config, seed):
    """Draws weights that are spread widely enough for losses to move in 20 steps. No bias or gain has its default."""
    gen = torch.Generator().manual_seed(seed)
    d, inner, dim = config["hidden_size"], config["intermediate_size"], head_dim_of(config)
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    family, biased = config["model_type"], config.get("attention_bias", False)
    weights = {}

    def normal(name, *shape, std=0.15, mean=0.0):
        weights[name] = torch.randn(*shape, generator=gen) * std + mean

    def linear(name, rows, cols, bias):
        normal(name + ".weight", rows, cols)
        if bias:
            normal(name + ".bias", rows, std=0.1)

    def norm(name, size):
        # Gemma stores the difference from one.
        normal(name + ".weight", size, std=0.1, mean=0.0 if is_gemma(config) else 1.0)

    normal("model.embed_tokens.weight", config["vocab_size"], d)
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        norm(at + "input_layernorm", d)
        linear(at + "self_attn.q_proj", q, d, biased or family == "qwen2")
        linear(at + "self_attn.k_proj", kv, d, biased or family == "qwen2")
        linear(at + "self_attn.v_proj", kv, d, biased or family == "qwen2")
        linear(at + "self_attn.o_proj", d, q, biased)
        if family in HEAD_NORMS:
            norm(at + "self_attn.q_norm", dim)
            norm(at + "self_attn.k_norm", dim)
        norm(at + "post_attention_layernorm", d)
        if is_gemma(config):
            norm(at + "pre_feedforward_layernorm", d)
            norm(at + "post_feedforward_layernorm", d)
        linear(at + "mlp.gate_proj", inner, d, config.get("mlp_bias", False))
        linear(at + "mlp.up_proj", inner, d, config.get("mlp_bias", False))
        linear(at + "mlp.down_proj", d, inner, config.get("mlp_bias", False))
    norm("model.norm", d)
    if not config["tie_word_embeddings"]:
        normal("lm_head.weight", config["vocab_size"], d)
    return weights


# ---- model ------------------------------------------------------------------------------------


def rms_norm(x, weight, eps):
    return x / torch.sqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def is_sliding(config, layer):
    return config.get("layer_types", {layer: None})[layer] == "sliding_attention"


def frequencies_of(config, layer):
    """Radians per position for each pair of columns, in float64, with long wavelengths stretched as in Llama 3.1."""
    dim = head_dim_of(config)
    sliding = is_sliding(config, layer)
    theta = config["rope_local_base_freq" if sliding else "rope_theta"]
    plain = [theta ** (-2 * j / dim) for j in range(dim // 2)]
    scaling = config.get("rope_scaling")
    if scaling is None or sliding:
        return plain
    if scaling["rope_type"] == "linear":
        return [frequency / scaling["factor"] for frequency in plain]
    factor, low, high = scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    original = scaling["original_max_position_embeddings"]
    scaled = []
    for frequency in plain:
        wavelength = 2 * math.pi / frequency
        if wavelength < original / high:
            scaled.append(frequency)
        elif wavelength > original / low:
            scaled.append(frequency / factor)
        else:
            share = (original / wavelength - low) / (high - low)
            scaled.append((1 - share) * frequency / factor + share * frequency)
    return scaled


def turn(x, frequencies):
    """Turns x [batch, heads, seq, dim] by position. Columns j and j + dim / 2 are the coordinates of a point."""
    angles = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * torch.tensor(frequencies, dtype=torch.float64)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def attend(q, k, v, scalar, window):
    """Causal attention in which neighboring heads of queries share keys and values; a query sees `window` keys."""
    groups = q.shape[1] // k.shape[1]
    k, v = (each.repeat_interleave(groups, dim=1) for each in (k, v))
    seq = q.shape[2]
    away = torch.arange(seq)[:, None] - torch.arange(seq)
    hidden = (away < 0) | (away >= window)
    mask = torch.zeros((seq, seq), dtype=q.dtype).masked_fill(hidden, float("-inf"))
    return torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(scalar) + mask, dim=-1) @ v


def rows_of(config, ar, p, tokens, beside=None):
    """tokens [batch, seq] -> normalized rows [batch, seq, width], which the head is multiplied with.

    beside(ar, p, x, name, y) is what the linear layer `name` gives for x in the place of y.
    """
    batch, seq = tokens.shape
    dim, eps = head_dim_of(config), config["rms_norm_eps"]
    gemma = is_gemma(config)
    offset = 1 if gemma else 0
    activation = (lambda gate: F.gelu(gate, approximate="tanh")) if gemma else F.silu

    def norm(x, name):
        return ar.op(lambda x, w: rms_norm(x, w + offset, eps), x, p[name + ".weight"])

    def linear(x, name):
        if name + ".bias" in p:
            plain = ar.op(lambda x, w, b: x @ w.t() + b, x, p[name + ".weight"], p[name + ".bias"])
        else:
            plain = ar.op(lambda x, w: x @ w.t(), x, p[name + ".weight"])
        return beside(ar, p, x, name, plain) if beside else plain

    def heads(x):
        return x.view(batch, seq, -1, dim)

    def turned(x, layer):
        x = x.transpose(1, 2)
        has_rope = config.get("no_rope_layers", {layer: 1})[layer]
        frequencies = frequencies_of(config, layer)
        return ar.op(lambda x: turn(x, frequencies), x) if has_rope else x

    x = ar.op(lambda w: F.embedding(tokens, w), p["model.embed_tokens.weight"])
    if gemma:
        # transformers keeps the factor in the dtype of the table.
        factor = torch.tensor(math.sqrt(config["hidden_size"]), dtype=ar.storage or torch.float64).item()
        x = ar.op(lambda x: x * factor, x)
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        normed = norm(x, at + "input_layernorm")
        q, k, v = (heads(linear(normed, at + f"self_attn.{part}_proj")) for part in "qkv")
        if config["model_type"] in HEAD_NORMS:
            q, k = norm(q, at + "self_attn.q_norm"), norm(k, at + "self_attn.k_norm")
        scalar = config.get("query_pre_attn_scalar", dim)
        window = config["sliding_window"] if is_sliding(config, i) else seq
        mixed = ar.op(lambda *qkv: attend(*qkv, scalar, window), turned(q, i), turned(k, i), v.transpose(1, 2))
        mixed = mixed.transpose(1, 2).reshape(batch, seq, -1)
        # Sum and norm are one op: the norm gets the sum before it is rounded.
        branch = linear(mixed, at + "self_attn.o_proj")
        if gemma:
            branch = norm(branch, at + "post_attention_layernorm")
        gain = p[at + ("pre_feedforward_layernorm" if gemma else "post_attention_layernorm") + ".weight"]
        hidden = ar.op(lambda a, b, w: rms_norm(a + b, w + offset, eps), x, branch, gain)
        x = ar.op(torch.add, x, branch)
        gate, up = (linear(hidden, at + f"mlp.{part}_proj") for part in ("gate", "up"))
        gated = ar.op(lambda gate, up: activation(gate) * up, gate, up)
        narrow = linear(gated, at + "mlp.down_proj")
        x = ar.op(torch.add, x, norm(narrow, at + "post_feedforward_layernorm") if gemma else narrow)
    return norm(x, "model.norm")


def head_of(config, p):
    return p["model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]


def loss_of_model(config, beside=None):
    def loss_of(ar, p, tokens, targets):
        """Head and loss are one op, so logits are never rounded."""
        rows = rows_of(config, ar, p, tokens, beside)

        def of_rows(rows, head):
            logits = rows @ head.t()
            return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))

        if ar.storage is None:
            return of_rows(rows, head_of(config, p))
        return of_rows(ar.grad_only(rows), ar.grad_only(head_of(config, p)))

    return loss_of


# ---- files ------------------------------------------------------------------------------------


class Exact:
    """The Arithmetic of generate.py without any rounding."""

    storage = None

    def op(self, f, *args):
        return f(*args)


def write_expected(path, config, weights, data):
    params = {k: v.double().requires_grad_() for k, v in weights.items()}
    tokens, targets = rows_at(data, 0, 1)
    logits = rows_of(config, Exact(), params, tokens) @ head_of(config, params).t()
    loss = loss_of_model(config)(Exact(), params, tokens, targets)
    gradients = torch.autograd.grad(loss, list(params.values()))
    expected = {"logits": logits.detach()} | {f"gradient.{k}": g for k, g in zip(params, gradients)}
    write_safetensors(path, {k: v.float() for k, v in expected.items()})
    return loss.item()


def main():
    data = torch.tensor(list((HERE / TEXT).read_bytes()))
    cases, by_name, rows = [], {}, {}
    for seed, (name, own) in enumerate(MODELS.items()):
        config = with_common(own)
        path = OUT / name
        path.mkdir(parents=True, exist_ok=True)
        weights = make_weights(config, 20261122 + seed)
        (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        write_safetensors(path / "model.safetensors", weights)
        rows[name] = write_expected(path / "expected.safetensors", config, weights, data)
        for precision in PRECISIONS:
            flags = flags_of(precision, COSINE, TEXT, model=f"decoders/{name}")
            entry = case_of(
                f"{name}-{precision}", precision, COSINE, weights, data, flags, by_name, loss_of_model(config)
            )
            cases.append(entry)
    document = {
        "made": "tooling/reference/decoders.py",
        "torch": torch.__version__,
        "seq": SEQ,
        "firstRow": data[: SEQ + 1].tolist(),
        "rowLosses": rows,
        "cases": cases,
    }
    (OUT / "expected.json").write_text(one_list_a_line(document) + "\n")


if __name__ == "__main__":
    main()
