"""Makes the reference values of batch normalization.

Run:  OMP_WAIT_POLICY=PASSIVE /usr/bin/python3 tooling/reference/batch-norm.py
It needs Debian's python3-torch (1.13) and nothing else, takes a second, and writes data/batch-norm/expected.json.
The values are computed independently in float64 by PyTorch's layer and autograd. Nothing of this project runs here.
"""

import json
import math
import pathlib

import torch

OUT = pathlib.Path(__file__).resolve().parent / "data" / "batch-norm" / "expected.json"
STEPS = 3

# Shapes [n, c] and [n, c, l] of each training step, whose batches differ in length, and then of
# the evaluation.
FLAT = [[5, 3], [2, 3], [7, 3], [4, 3]]
LONG = [[2, 3, 4], [1, 3, 2], [3, 3, 5], [2, 3, 1]]
CASES = {
    "plain": (FLAT, {}),
    "long": (LONG, {}),
    "options": (FLAT, dict(eps=1e-2, momentum=0.3)),
    "cumulative": (LONG, dict(momentum=None)),
    "no affine": (FLAT, dict(affine=False)),
    "no running statistics": (LONG, dict(track_running_stats=False)),
}


def values(shape, seed):
    """f32 values that both sides can compute. They are not centered, and channels differ in their spread."""
    flat = [(1 + i % 3) * math.sin(1.7 * i + seed) + 0.5 * (i % 3) for i in range(math.prod(shape))]
    return torch.tensor(flat, dtype=torch.float32).reshape(shape).double()


def run_step(layer, shape, seed):
    x = values(shape, seed).requires_grad_()
    layer.zero_grad()
    y = layer(x)
    (y * values(shape, seed + 0.5)).sum().backward()
    step = dict(shape=shape, seed=seed, y=flat(y), dx=flat(x.grad))
    if layer.affine:
        step.update(dWeight=flat(layer.weight.grad), dBias=flat(layer.bias.grad))
    if layer.track_running_stats:
        step.update(
            mean=flat(layer.running_mean),
            variance=flat(layer.running_var),
            count=int(layer.num_batches_tracked),
        )
    return step


def flat(tensor):
    return [float(f"{value:.10g}") for value in tensor.detach().flatten().tolist()]


def run_case(shapes, options):
    layer = torch.nn.BatchNorm1d(3, dtype=torch.float64, **options)
    if layer.affine:
        with torch.no_grad():
            layer.weight.copy_(values([3], 10))
            layer.bias.copy_(values([3], 20))
    steps = [run_step(layer, shape, seed) for seed, shape in enumerate(shapes[:STEPS])]
    layer.eval()
    return dict(options=options, train=steps, eval=run_step(layer, shapes[STEPS], STEPS))


OUT.parent.mkdir(parents=True, exist_ok=True)
cases = {name: run_case(shapes, options) for name, (shapes, options) in CASES.items()}
lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(case)}" for name, case in cases.items())
OUT.write_text("{\n" + lines + "\n}\n")
