"""One rank of a rival. It does what the coordinator asks over the control socket, with one line of JSON per request.

Requests, values and checks are those of rank.mjs.
"""

import json
import os
import socket
import time

import numpy as np

PERIOD = 251


def period_of(rank, shift=0):
    """One period of the values that a rank contributes, from element `shift` on."""
    i = np.arange(shift, shift + PERIOD, dtype=np.int64)
    return ((i * 31 + rank * 17) % PERIOD - 125).astype(np.float32)


def sum_of(world_size, shift=0):
    return sum(period_of(rank, shift) for rank in range(world_size))


def fill(array, period):
    whole = len(array) // PERIOD * PERIOD
    array[:whole].reshape(-1, PERIOD)[:] = period
    array[whole:] = period[: len(array) - whole]


def expect(array, period, what):
    whole = len(array) // PERIOD * PERIOD
    if not (array[:whole].reshape(-1, PERIOD) == period).all() or not (
        array[whole:] == period[: len(array) - whole]
    ).all():
        raise ValueError(f"wrong result: {what}")


class Rank:
    """A rank over an `engine`, which has name, prepare(operation, whole, beside) -> run, and barrier(). Arrays are numpy's."""

    def __init__(self, engine, rank, world_size, max_bytes):
        self.engine, self.rank, self.world_size = engine, rank, world_size
        self.first = np.empty(max_bytes // 4, dtype=np.float32)
        self.second = np.empty(1, dtype=np.float32)

    def prepare(self, operation, whole, beside):
        if len(self.second) * 4 < beside:
            self.second = np.empty(beside // 4, dtype=np.float32)
        self.operation = operation
        self.whole, self.beside = self.first[: whole // 4], self.second[: beside // 4]
        self.run = self.engine.prepare(operation, self.whole, self.beside)
        return {}

    def fill(self):
        own = period_of(self.rank)
        if self.operation in ("all-gather", "send-recv"):
            fill(self.beside, own)
            self.whole.fill(np.nan)
        elif self.operation == "broadcast" and self.rank > 0:
            self.whole.fill(np.nan)
        else:
            fill(self.whole, own)
            self.beside.fill(np.nan)

    def expect(self):
        operation, part = self.operation, len(self.beside)
        if operation == "all-gather":
            for r in range(self.world_size):
                expect(self.whole[r * part : (r + 1) * part], period_of(r), f"part {r}")
        elif operation == "reduce-scatter":
            expect(self.beside, sum_of(self.world_size, self.rank * part), operation)
        elif operation == "all-reduce":
            expect(self.whole, sum_of(self.world_size), operation)
        else:
            source = 0 if operation == "broadcast" else (self.rank - 1) % self.world_size
            expect(self.whole, period_of(source), operation)

    def check(self):
        self.fill()
        self.engine.barrier()
        self.run()
        self.expect()
        return {}

    def recheck(self):
        if self.operation == "all-reduce":
            return self.check()
        self.expect()
        return {}

    def time(self, repetitions, warmUps):
        for _ in range(warmUps):
            self.run()
        self.engine.barrier()
        start, cpu_start = time.perf_counter(), time.process_time()
        for _ in range(repetitions):
            self.run()
        passed, cpu = time.perf_counter() - start, time.process_time() - cpu_start
        return {"ms": passed * 1000 / repetitions, "cpuMs": cpu * 1000 / repetitions}


def serve(spec, rank, connect):
    """Runs one rank. `connect(rank, world_size, spec)` makes its engine."""
    control = socket.socket(socket.AF_UNIX)
    control.connect(spec["control"])
    lines = control.makefile("r")

    def say(**message):
        control.sendall((json.dumps({"rank": rank, **message}) + "\n").encode())

    say(hello=True)
    engine = connect(rank, spec["worldSize"], spec)
    served = Rank(engine, rank, spec["worldSize"], spec["job"]["maxBytes"])
    say(ready=engine.name)
    for line in lines:
        request = json.loads(line)
        number, what = request.pop("id"), request.pop("do")
        if what == "close":
            say(id=number)
            break
        try:
            say(id=number, **getattr(served, what)(**request))
        except Exception as error:  # sent to the coordinator, which leaves this cell out
            say(id=number, error=str(error).split("\n")[0])
    else:
        os._exit(1)  # the coordinator has ended
    if hasattr(engine, "close"):
        engine.close()
    os._exit(0)
