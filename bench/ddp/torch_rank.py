"""One rank of PyTorch's DistributedDataParallel over Gloo, with gradients of given shapes.

All buckets start together when the last one is ready. The time of communication ends when all of them have ended.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WARM_UP_STEPS = 3


class Shapes(torch.nn.Module):
    def __init__(self, shapes):
        super().__init__()
        self.all = torch.nn.ParameterList(
            torch.nn.Parameter(torch.zeros(shape)) for shape in shapes
        )

    def forward(self):
        return sum(parameter.sum() for parameter in self.all)


def main(spec):
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = f"file://{spec['folder']}/store"
    dist.init_process_group(
        "gloo", init_method=store, rank=spec["rank"], world_size=spec["worldSize"]
    )
    model = DistributedDataParallel(
        Shapes(spec["shapes"]),
        bucket_cap_mb=spec["bucketCapBytes"] / 2**20,
        gradient_as_bucket_view=True,
    )
    waiting = []
    ends = []
    start = 0.0

    def alone(group, bucket):
        nonlocal start
        result = torch.futures.Future()
        waiting.append((bucket.buffer(), result))
        if bucket.is_last():
            start = time.perf_counter()
            for buffer, future in waiting:
                work = dist.all_reduce(buffer, async_op=True).get_future()
                work.add_done_callback(lambda done, future=future: ended(done, future))
            waiting.clear()
        return result

    def ended(done, future):
        ends.append(time.perf_counter())
        future.set_result(done.value()[0] / spec["worldSize"])

    model.register_comm_hook(None, alone)
    times = []
    for step in range(WARM_UP_STEPS + spec["steps"]):
        dist.barrier()
        model().backward()
        if step >= WARM_UP_STEPS:
            times.append({"communicationMs": 1000 * (max(ends) - start)})
        ends.clear()
        model.zero_grad(set_to_none=True)
    if spec["rank"] == 0:
        print(json.dumps({"version": torch.__version__, "times": times}), flush=True)
    dist.barrier()
    os._exit(0)  # Gloo's threads sometimes abort a process that exits normally


main(json.loads(sys.argv[1]))
