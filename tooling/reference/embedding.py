"""Makes the reference values for the losses of embeddings.

Run:  OMP_WAIT_POLICY=PASSIVE /usr/bin/python3 tooling/reference/embedding.py
It needs Debian's python3-torch (1.13) and nothing else, and takes seconds.
It writes data/embedding/expected.json: embeddings that f32 holds exactly, and for each case the loss and the gradient
of each of them, computed in float64. Each loss is written here from its formula, with matrices as a whole.
Nothing of this project runs here.
"""

import json

import torch
import torch.nn.functional as F

from generate import HERE, one_list_a_line

OUT = HERE.parent / "embedding"
BATCH, WIDTH, HARD = 5, 6, 3


def choice(rows, candidates, temperature):
    return F.cross_entropy(rows @ candidates.t() / temperature, torch.arange(len(rows)))


def info_nce(q, d, n=None, temperature=0.05, symmetric=False):
    forth = choice(q, d if n is None else torch.cat([d, n]), temperature)
    return (forth + choice(d, q, temperature)) / 2 if symmetric else forth


def matryoshka(q, d, n, dims, weights):
    cut = lambda x, dim: F.normalize(x[:, :dim], dim=1)
    return sum(w * info_nce(cut(q, dim), cut(d, dim), cut(n, dim)) for dim, w in zip(dims, weights))


def cosine_similarity(q, d, scores):
    return F.mse_loss(F.cosine_similarity(q, d), scores)


def co_sent(q, d, scores, scale=20.0):
    s = F.cosine_similarity(q, d) * scale
    pairs = [s[i] - s[j] for i in range(BATCH) for j in range(BATCH) if scores[i] < scores[j]]
    return torch.logsumexp(torch.stack([torch.zeros((), dtype=s.dtype), *pairs]), 0)


def margin_mse(q, d, n, margins):
    return F.mse_loss((q * d).sum(1) - (q * n).sum(1), margins)


def triplet(q, d, n, margin):
    return F.relu((q - d).norm(dim=1) - (q - n).norm(dim=1) + margin).mean()


def main():
    gen = torch.Generator().manual_seed(20261125)
    draw = lambda rows: torch.randn(rows, WIDTH, generator=gen).double()
    given = {"queries": draw(BATCH), "documents": draw(BATCH), "negatives": draw(HARD), "far": draw(BATCH)}
    scores = torch.tensor([0.25, 1.0, 0.5, 0.25, 0.0]).double()
    cases = {
        "plain": lambda q, d, n, far: info_nce(q, d, temperature=0.7),
        "default": lambda q, d, n, far: info_nce(F.normalize(q), F.normalize(d)),
        "negatives": lambda q, d, n, far: info_nce(q, d, n, temperature=0.7),
        "symmetric": lambda q, d, n, far: info_nce(q, d, n, temperature=0.7, symmetric=True),
        "matryoshka": lambda q, d, n, far: matryoshka(q, d, n, (6, 4, 2), (1.0, 0.5, 0.25)),
        "cosineSimilarity": lambda q, d, n, far: cosine_similarity(q, d, scores),
        "coSent": lambda q, d, n, far: co_sent(q, d, scores),
        "marginMse": lambda q, d, n, far: margin_mse(q, d, far, scores),
        "triplet": lambda q, d, n, far: triplet(q, d, far, 0.5),
    }
    expected = []
    for name, loss_of in cases.items():
        leaves = {key: rows.clone().requires_grad_() for key, rows in given.items()}
        loss = loss_of(*leaves.values())
        gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        kept = {key: g.flatten().tolist() for key, g in zip(leaves, gradients) if g is not None}
        expected.append({"name": name, "loss": loss.item(), "gradients": kept})
    document = {
        "made": "tooling/reference/embedding.py",
        "torch": torch.__version__,
        "width": WIDTH,
        "scores": scores.tolist(),
        "embeddings": {key: rows.flatten().tolist() for key, rows in given.items()},
        "cases": expected,
    }
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "expected.json").write_text(one_list_a_line(document))


if __name__ == "__main__":
    main()
