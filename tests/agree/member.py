"""One host of the agreement test: sums a gradient by a plan a few times; rank 0 prints the seconds of each step."""

from __future__ import annotations

import sys
import threading
import time

import torch
import torch.distributed as dist

from gradwire.clock import MonotonicClock
from gradwire.config import resolve
from gradwire.events import Event
from gradwire.level import Level
from gradwire.sites.setup import open_reducer
from gradwire.tree.request import BucketRequest
from gradwire.types import Bucket


class NullSink:
    def emit(self, event: Event) -> None:
        """Events are not used here."""


def main(planner: str, net: str, numel: int, steps: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    config = {
        "plan": planner, "level": "off", "planning": {"net": net, "aware": False, "probe": False, "side": False},
        "transport": {"kind": "ltp", "tolerance": 1.0},
    }  # fmt: skip
    group = dist.distributed_c10d._get_default_group()
    reducer = open_reducer(resolve(config), group, numel, MonotonicClock(), NullSink())
    assert reducer is not None
    residual = torch.zeros(numel)
    for number in range(steps):
        gradient = torch.full((numel,), float(dist.get_rank()))
        done = threading.Event()
        dist.barrier()
        start = time.monotonic()
        bucket = Bucket(0, number, numel, 4, (), is_last=True)
        reducer.submit(BucketRequest(bucket, Level(), gradient, residual, lambda _, done=done: done.set()))  # type: ignore[misc]
        assert done.wait(60)
        seconds = torch.tensor([time.monotonic() - start], dtype=torch.float64)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        assert torch.allclose(gradient, torch.full((numel,), (dist.get_world_size() - 1) / 2))
        if dist.get_rank() == 0:
            print(f"STEP {float(seconds):.6f}", flush=True)
    reducer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
