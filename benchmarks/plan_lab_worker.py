"""One rank of benchmarks/plan_lab.py: reduces a gradient repeatedly with each contestant and records step times.

In: a specification (JSON) that all ranks read. Out: rank 0 writes one JSON line per contestant. Every step's result is
compared with the true mean, and all ranks compare hashes of it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gradwire.clock import MonotonicClock
from gradwire.compress import kernels
from gradwire.config import resolve
from gradwire.events import Event
from gradwire.events import Planned as PlannedEvent
from gradwire.level import Level
from gradwire.sites.setup import open_reducer
from gradwire.tree.request import BucketRequest
from gradwire.types import Bucket

BUCKET = 1 << 20  # elements: DDP with bucket_cap_mb=4


class Notes:
    """Keeps what is said about plans, with the time since the run began."""

    def __init__(self, zero: float) -> None:
        self.zero = zero
        self.plans: list[dict[str, Any]] = []

    def emit(self, event: Event) -> None:
        if isinstance(event, PlannedEvent):
            self.plans.append({"at": event.at - self.zero, "version": event.version, "reason": event.reason})


class Ring:
    """Gloo's all-reduce on the same buckets."""

    def step(self, number: int, gradient: torch.Tensor) -> int:
        works = [dist.all_reduce(part, async_op=True) for part in gradient.split(BUCKET)]
        for work in works:
            work.wait()
        gradient.div_(dist.get_world_size())
        return 0

    sideways = 0

    def close(self) -> None:
        """The group is the run's."""


class OnTrees:
    """A plan's trees, as DDP's hook would use them."""

    def __init__(self, spec: dict[str, Any], numel: int, notes: Notes) -> None:
        group = dist.distributed_c10d._get_default_group()
        planned = open_reducer(resolve(spec["config"]), group, numel, MonotonicClock(), notes)
        assert planned is not None
        self._planned = planned
        self._residual = torch.zeros(numel)
        self._level = Level.parse(spec["config"]["level"])

    def step(self, number: int, gradient: torch.Tensor) -> int:
        plan = self._planned.plan
        version = plan.version if plan else 0
        parts, residuals = gradient.split(BUCKET), self._residual.split(BUCKET)
        left, errors = threading.Semaphore(0), []

        def done(error: BaseException | None) -> None:
            if error is not None:
                errors.append(error)
            left.release()

        for index, (part, residual) in enumerate(zip(parts, residuals, strict=True)):
            bucket = Bucket(index, number, part.numel(), 4, (), index == len(parts) - 1)
            self._planned.submit(BucketRequest(bucket, self._level, part, residual, done))
        for _ in parts:
            if not left.acquire(timeout=200):
                raise TimeoutError("a bucket was not restored within 200 s")
        if errors:
            raise errors[0]
        return version

    @property
    def sideways(self) -> int:
        return self._planned.side_frames

    def close(self) -> None:
        self._planned.close()


def run(spec: dict[str, Any], numel: int, zero: float) -> dict[str, Any]:
    """One contestant: a warm-up step, then steps until time or number is up; seconds are the slowest rank's."""
    rank, world = dist.get_rank(), dist.get_world_size()
    notes = Notes(zero)
    own = torch.randn(numel, generator=torch.Generator().manual_seed(rank))
    mean = sum(torch.randn(numel, generator=torch.Generator().manual_seed(r)) for r in range(world)) / world
    way = Ring() if spec["config"] is None else OnTrees(spec, numel, notes)
    steps, began = [], 0.0
    try:
        for number in range(1 + spec["most"]):
            gradient = own.clone()
            dist.barrier()
            start = time.monotonic()
            version = way.step(number, gradient)
            end = time.monotonic()
            tell = torch.tensor([end - start, end - began if number else 0.0], dtype=torch.float64)
            dist.all_reduce(tell, dist.ReduceOp.MAX)
            steps.append({"at": start - zero, "seconds": float(tell[0]), "version": version})
            error = float((gradient - mean).norm() / mean.norm())
            digest = torch.tensor([kernels.checksum(gradient.view(torch.uint8))], dtype=torch.int64)
            highest, lowest = digest.clone(), digest.clone()
            dist.all_reduce(highest, dist.ReduceOp.MAX)
            dist.all_reduce(lowest, dist.ReduceOp.MIN)
            assert int(highest) == int(lowest), f"step {number}: replicas differ"
            if spec["config"] is None or spec["config"]["level"] == "off":
                assert error < 1e-5, f"step {number}: off by {error:.2g}"
            if number == 0:
                began = time.monotonic()
            elif float(tell[1]) > spec["seconds"]:
                break
    except BaseException:
        way.close()
        raise
    sideways = way.sideways
    way.close()
    dist.barrier()
    return {"name": spec["name"], "steps": steps, "plans": notes.plans, "error": error, "sideways": sideways}


def main() -> None:
    torch.set_num_threads(1)
    spec = json.loads(Path(sys.argv[1]).read_text())
    dist.init_process_group("gloo")
    zero = float(os.environ["GRADWIRE_LAB_START"])
    for contestant in spec["contestants"]:
        result = run(contestant, spec["numel"], zero)
        if dist.get_rank() == 0:
            print("RESULT " + json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
