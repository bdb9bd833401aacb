"""Makes the reference values for learning from pairs of answers, of which one is preferred.

Run:  OMP_WAIT_POLICY=PASSIVE /usr/bin/python3 tooling/reference/preference.py
It needs Debian's python3-torch (1.13) and nothing else, and takes about a minute.
It reads data/tiny/text.txt and data/lora/llama, and draws the models of decoders.py again. It writes pairs.jsonl (prompts
with two answers each) and expected.json: losses of given log-probabilities with their gradients, in float64, and cases of
20 steps. It was written from the papers (Rafailov et al., "Direct Preference Optimization", 2023; Hong et al., "ORPO", 2024).
Nothing of this project runs here.
"""

import json

import torch
import torch.nn.functional as F

from decoders import COMMON, MODELS, head_of, make_weights, rows_of
from generate import COSINE, HERE, TEXT, case_of, flags_of, one_list_a_line
from lora import beside, make_adapters

OUT = HERE.parent / "preference"
END = 255  # of the tokenizer of bytes
PAIRS = 18
CASE = dict(COSINE, batch=6, lr=2e-2)


# ---- losses ------------------------------------------------------------------------------------


def dpo(chosen, rejected, ref_chosen, ref_rejected, beta=0.1, smoothing=0.0):
    margin = beta * ((chosen - rejected) - (ref_chosen - ref_rejected))
    return -(1 - smoothing) * F.logsigmoid(margin) - smoothing * F.logsigmoid(-margin), margin


def orpo(chosen, rejected, chosen_length, rejected_length, lam=0.1):
    """Likelihoods are geometric means over the tokens of an answer; log1mexp is exact for p near 1."""
    c, r = chosen / chosen_length, rejected / rejected_length
    log_odds = lambda x: x - torch.log(-torch.expm1(x))
    margin = log_odds(c) - log_odds(r)
    return -c - lam * F.logsigmoid(margin), margin


def loss_cases():
    gen = torch.Generator().manual_seed(20261129)
    draw = lambda scale: (-torch.rand(5, generator=gen) * scale).float().double()
    given = {"chosen": draw(40), "rejected": draw(40)}
    reference = {"chosen": draw(40), "rejected": draw(40)}
    lengths = {"chosen": torch.tensor([3.0, 7, 1, 12, 5]).double(), "rejected": torch.tensor([4.0, 2, 9, 12, 1]).double()}
    near = {"chosen": torch.tensor([-1e-6, -1e-4, -0.5, -3e-5, -60]).double(), "rejected": torch.tensor([-2e-5, -0.01, -1e-6, -30, -1e-3]).double()}
    near = {k: v.float().double() for k, v in near.items()}
    ref = list(reference.values())
    size = list(lengths.values())
    cases = {
        "dpo": (given, lambda c, r: dpo(c, r, *ref)),
        "smooth": (given, lambda c, r: dpo(c, r, *ref, beta=0.3, smoothing=0.2)),
        "orpo": (given, lambda c, r: orpo(c, r, *size)),
        "heavy": (given, lambda c, r: orpo(c, r, *size, lam=0.7)),
        "certain": (near, lambda c, r: orpo(c, r, *size, lam=0.7)),
    }
    found = []
    for name, (values, loss_of) in cases.items():
        leaves = [v.clone().requires_grad_() for v in values.values()]
        losses, margins = loss_of(*leaves)
        loss = losses.mean()
        gradients = torch.autograd.grad(loss, leaves)
        entry = {"name": name, **{k: v.tolist() for k, v in values.items()}, "loss": loss.item()}
        entry.update(margins=margins.tolist(), gradients=[g.tolist() for g in gradients])
        found.append(entry)
    kept = lambda numbers: {k: v.tolist() for k, v in numbers.items()}
    return {"reference": kept(reference), "lengths": kept(lengths), "losses": found}


# ---- runs --------------------------------------------------------------------------------------


def make_pairs():
    """Answers of 3 to 13 letters after prompts of 4 to 18, all from the text; the rejected one is read backwards."""
    text = (HERE / TEXT).read_text().replace("\n", " ")
    pairs, at = [], 40
    for i in range(PAIRS):
        prompt, chosen = 4 + (5 * i) % 15, 3 + (7 * i) % 11
        rejected = 3 + (4 * i) % 11
        parts = text[at : at + prompt], text[at + prompt : at + prompt + chosen], text[at + 60 : at + 60 + rejected][::-1]
        pairs.append(dict(zip(("prompt", "chosen", "rejected"), parts)))
        at += 97
    return pairs


def log_prob(config, ar, p, prompt, answer, beside=None):
    ids = torch.tensor([[*prompt.encode(), *answer.encode(), END]])
    rows = rows_of(config, ar, p, ids[:, :-1], beside)
    logits = torch.log_softmax(rows @ head_of(config, p).t(), dim=-1)
    each = logits[0].gather(1, ids[0, 1:, None])[:, 0]
    return each[len(prompt.encode()) - 1 :].sum(), len(answer.encode()) + 1


def numbers_at(pairs, step, batch):
    """The numbers of a step's pairs with --order sequential; there are no targets beside them."""
    numbers = torch.tensor([(step * batch + i) % len(pairs) for i in range(batch)])
    return numbers, numbers


def orpo_of(config, pairs):
    def loss_of(ar, p, numbers, _):
        losses = []
        for i in numbers.tolist():
            prompt, chosen, rejected = pairs[i].values()
            (c, c_length), (r, r_length) = (log_prob(config, ar, p, prompt, a) for a in (chosen, rejected))
            losses.append(orpo(c, r, c_length, r_length, lam=0.25)[0])
        return torch.stack(losses).mean()

    return loss_of


def dpo_of(config, weights, pairs):
    """The reference is the base, which has no adapters; it is computed here in f64."""

    def loss_of(ar, adapters, numbers, _):
        dtype = next(iter(adapters.values())).dtype
        base = {k: w.to(dtype) for k, w in weights.items()}
        exact = {k: w.double() for k, w in weights.items()}
        losses = []
        for i in numbers.tolist():
            prompt, chosen, rejected = pairs[i].values()
            c, r = (log_prob(config, ar, {**base, **adapters}, prompt, a, beside)[0] for a in (chosen, rejected))
            with torch.no_grad():
                rc, rr = (log_prob(config, ar, exact, prompt, a)[0].to(dtype) for a in (chosen, rejected))
            losses.append(dpo(c, r, rc, rr, beta=0.5, smoothing=0.1)[0])
        return torch.stack(losses).mean()

    return loss_of


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    pairs = make_pairs()
    (OUT / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    config = {**MODELS["llama"], **COMMON}
    weights = make_weights(config, 20261122)  # those of data/decoders/llama
    first = make_adapters(weights, 1, is_zero=True)  # those of data/lora/llama
    data = "tooling/reference/data/preference/pairs.jsonl"
    cases, by_name = [], {}
    for task, params, loss_of, own in (
        ("orpo", weights, orpo_of(config, pairs), ["--orpo-lambda", "0.25"]),
        (
            "dpo",
            first,
            dpo_of(config, weights, pairs),
            ["--dpo-beta", "0.5", "--label-smoothing", "0.1", "--adapter", "tooling/reference/data/lora/llama"],
        ),
    ):
        case = CASE if task == "dpo" else dict(CASE, lr=3e-3)
        flags = flags_of("fp32", case, TEXT, model="decoders/llama")
        flags[flags.index("--data") + 1] = data
        flags += ["--task", task, *own]
        cases.append(case_of(f"preference.{task}-fp32", "fp32", case, params, pairs, flags, by_name, loss_of, numbers_at))
    document = {"made": "tooling/reference/preference.py", "torch": torch.__version__, **loss_cases(), "cases": cases}
    (OUT / "expected.json").write_text(one_list_a_line(document) + "\n")


if __name__ == "__main__":
    main()
