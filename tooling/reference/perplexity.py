"""Makes the reference values for the command `eval`.

Run:  OMP_WAIT_POLICY=PASSIVE /usr/bin/python3 tooling/reference/perplexity.py
It needs Debian's python3-torch (1.13) and nothing else, and takes seconds.
It reads data/tiny/text.txt and draws the models of generate.py and decoders.py again, whose files are in data. It
writes data/perplexity/expected.json: the summed loss of every byte of the text except the first, in consecutive rows
of SEQ, the last of which is shorter, computed in float64. Nothing of this project runs here.
"""

import json
import math

import torch

import decoders
import generate
from generate import HERE, TEXT

OUT = HERE.parent / "perplexity"
SEQ = 40


def summed(data, loss_of):
    total = 0.0
    for start in range(0, len(data) - 1, SEQ):
        row = data[start : start + SEQ + 1]
        total += loss_of(row[None, :-1], row[None, 1:]).item() * (len(row) - 1)
    return total


def main():
    data = torch.tensor(list((HERE / TEXT).read_bytes()))
    models = {"tiny": (generate.make_weights(), generate.loss_of)}
    for seed, (name, own) in enumerate(decoders.MODELS.items()):
        config = decoders.with_common(own)
        weights = decoders.make_weights(config, 20261122 + seed)
        models[f"decoders/{name}"] = (weights, decoders.loss_of_model(config))
    cases = []
    for name, (weights, loss_of) in models.items():
        params = {k: v.double() for k, v in weights.items()}
        ar = generate.Arithmetic(None)
        with torch.no_grad():
            total = summed(data, lambda tokens, targets: loss_of(ar, params, tokens, targets))
        targets = len(data) - 1
        perplexity = math.exp(total / targets)
        cases.append({"name": name, "targets": targets, "summedLoss": total, "perplexity": perplexity})
    document = {"made": "tooling/reference/perplexity.py", "torch": torch.__version__, "seq": SEQ, "cases": cases}
    OUT.mkdir(exist_ok=True)
    (OUT / "expected.json").write_text(generate.one_list_a_line(document) + "\n")


if __name__ == "__main__":
    main()
