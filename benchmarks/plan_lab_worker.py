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


class PlanLog:
    """Records plan events with their time since the start of the run."""

    def __init__(self, zero: float) -> None:
        self.zero = zero
        self.plans: list[dict[str, Any]] = []

    def emit(self, event: Event) -> None:
        if isinstance(event, PlannedEvent):
            self.plans.append({"at": event.at - self.zero, "version": event.version, "reason": event.reason})


class GlooRing:
    """Gloo's all-reduce on the same buckets."""

    def step(self, number: int, gradient: torch.Tensor) -> int:
        works = [dist.all_reduce(part, async_op=True) for part in gradient.split(BUCKET)]
        for work in works:
            work.wait()
        gradient.div_(dist.get_world_size())
        return 0

    sideways = 0

    def close(self) -> None:
        """The process group belongs to the run."""


class PlannedTrees:
    """The trees of a plan, used as DDP's hook uses them."""

    def __init__(self, spec: dict[str, Any], numel: int, plan_log: PlanLog) -> None:
        group = dist.distributed_c10d._get_default_group()
        reducer = open_reducer(resolve(spec["config"]), group, numel, MonotonicClock(), plan_log)
        assert reducer is not None
        self._reducer = reducer
        self._residual = torch.zeros(numel)
        self._level = Level.parse(spec["config"]["level"])

    def step(self, number: int, gradient: torch.Tensor) -> int:
        plan = self._reducer.plan
        version = plan.version if plan else 0
        parts, residuals = gradient.split(BUCKET), self._residual.split(BUCKET)
        done_count, errors = threading.Semaphore(0), []

        def done(error: BaseException | None) -> None:
            if error is not None:
                errors.append(error)
            done_count.release()

        for index, (part, residual) in enumerate(zip(parts, residuals, strict=True)):
            bucket = Bucket(index, number, part.numel(), 4, (), index == len(parts) - 1)
            self._reducer.submit(BucketRequest(bucket, self._level, part, residual, done))
        for _ in parts:
            if not done_count.acquire(timeout=200):
                raise TimeoutError("a bucket was not restored within 200 s")
        if errors:
            raise errors[0]
        return version

    @property
    def sideways(self) -> int:
        return self._reducer.side_frames

    def close(self) -> None:
        self._reducer.close()


def run(spec: dict[str, Any], numel: int, zero: float) -> dict[str, Any]:
    """One contestant: a warm-up step, then steps until time or number is up; seconds are the slowest rank's."""
    rank, world = dist.get_rank(), dist.get_world_size()
    plan_log = PlanLog(zero)
    own = torch.randn(numel, generator=torch.Generator().manual_seed(rank))
    mean = sum(torch.randn(numel, generator=torch.Generator().manual_seed(r)) for r in range(world)) / world
    reducer = GlooRing() if spec["config"] is None else PlannedTrees(spec, numel, plan_log)
    steps, began = [], 0.0
    try:
        for number in range(1 + spec["most"]):
            gradient = own.clone()
            dist.barrier()
            start = time.monotonic()
            version = reducer.step(number, gradient)
            end = time.monotonic()
            longest = torch.tensor([end - start, end - began if number else 0.0], dtype=torch.float64)
            dist.all_reduce(longest, dist.ReduceOp.MAX)
            steps.append({"at": start - zero, "seconds": float(longest[0]), "version": version})
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
            elif float(longest[1]) > spec["seconds"]:
                break
    except BaseException:
        reducer.close()
        raise
    sideways = reducer.sideways
    reducer.close()
    dist.barrier()
    return {"name": spec["name"], "steps": steps, "plans": plan_log.plans, "error": error, "sideways": sideways}


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
