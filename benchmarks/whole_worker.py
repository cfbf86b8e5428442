"""One rank of benchmarks/whole.py: trains on real data with one contestant until it is ended.

Rank 0 evaluates periodically; its clock counts training only. Every rank reports hashes of its weights, which show
whether the replicas stayed equal.
"""

from __future__ import annotations

import json
import os
import sys
import time
import zlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.demo.data import Dataset, load
from gradwire.events import Decided, Event, Planned
from harness.contestants import CONTESTANTS

MARK = "WHOLE "
# Seconds of training between two evaluations, steps between two hashes.
EVALUATE, HASH = 0.5, 10
TESTED = 4000


def report(**facts: Any) -> None:
    print(MARK + json.dumps({"rank": dist.get_rank(), **facts}), flush=True)


class LastDecision:
    """The last level, reason and plan version that gradwire reported."""

    def __init__(self) -> None:
        self.level, self.plan, self.reason = "", 0, ""

    def emit(self, event: Event) -> None:
        if isinstance(event, Decided):
            self.level, self.reason = event.level, event.reason
        elif isinstance(event, Planned):
            self.plan = event.version


def install(model: DistributedDataParallel, spec: dict[str, Any]) -> LastDecision:
    last = LastDecision()
    if spec["config"] is not None:
        gradwire.attach(model, spec["config"]).add_sink(last)
    else:
        CONTESTANTS[spec["hook"]].install(model)
    return last


def net_of(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 10))


def accuracy(net: nn.Module, data: Dataset) -> float:
    with torch.no_grad():
        return float((net(data.test_images[:TESTED]).argmax(1) == data.test_labels[:TESTED]).float().mean())


def hash_of(net: nn.Module) -> int:
    return zlib.crc32(b"".join(parameter.detach().numpy().tobytes() for parameter in net.parameters()))


def train(spec: dict[str, Any], data: Dataset) -> None:
    rank = dist.get_rank()
    net = net_of(spec["width"])
    bucket = 5.0 if spec["config"] is not None else CONTESTANTS[spec["hook"]].bucket_mb
    model = DistributedDataParallel(net, bucket_cap_mb=bucket, init_sync=False, gradient_as_bucket_view=True)
    last = install(model, spec)
    optimizer = torch.optim.SGD(model.parameters(), lr=spec["rate"], momentum=0.9)
    generator = torch.Generator().manual_seed(1000 + rank)
    dist.barrier()
    report(kind="started")
    spent, tested, step = 0.0, 0.0, 0
    while True:
        begin = time.perf_counter()
        pick = torch.randint(len(data.train_labels), (spec["batch"],), generator=generator)
        loss = F.cross_entropy(model(data.train_images[pick]), data.train_labels[pick])
        time.sleep(spec["compute"])
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        spent += time.perf_counter() - begin
        step += 1
        if step % HASH == 0 or spent / step > 1.0:
            report(kind="hash", step=step, hash=hash_of(net))
        if rank == 0 and spent - tested >= EVALUATE:
            tested = spent
            share_correct = accuracy(net, data)
            report(
                kind="evaluated",
                step=step,
                seconds=spent,
                loss=float(loss.detach()),
                accuracy=share_correct,
                **vars(last),
            )


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    data = load("fashion-mnist", Path(spec["data"]))
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    os.nice(5)  # the emulator has priority: a late emulator distorts the measurement
    train(spec, data)


if __name__ == "__main__":
    main()
