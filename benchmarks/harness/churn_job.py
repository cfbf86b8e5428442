"""What a replica of the churn benchmark runs: the same for a first process and for one that replaces a dead one.

It reports to the parent by a pipe: (kind, facts). The parent kills it at any time, and says at which step the job ends.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from gradwire import attach, init_process_group  # imported once, in the parent of all replicas
from gradwire.demo.data import load
from gradwire.events import Event, OuterStepped

BATCH = 16
# Steps until the parent says otherwise.
FOREVER = 1 << 40


def digest(net: nn.Module) -> int:
    """Of all weights and buffers."""
    total = 0
    for value in net.state_dict().values():
        total = zlib.crc32(value.detach().contiguous().numpy().tobytes(), total)
    return total


def run(rank: int, environment: Mapping[str, str], job: Mapping[str, Any], pipe: Connection) -> None:
    """The target of a process."""
    torch.set_num_threads(1)
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "GRADWIRE_IFNAME": "lo", "RANK": str(rank), **environment}
    try:
        init_process_group("gloo", timeout=timedelta(seconds=job["timeout"]))
        _train(rank, job, pipe)
        dist.destroy_process_group()
    except Exception as error:
        pipe.send(("failed", f"{type(error).__name__}: {error}"))
        raise


def _train(rank: int, job: Mapping[str, Any], pipe: Connection) -> None:
    every, last = job["sync_every"], FOREVER
    data, generator = load("digits"), torch.Generator().manual_seed(rank)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))
    model = DistributedDataParallel(net, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    handle = attach(model, job["config"], optimizer=optimizer, sync_every=every)

    def report_round(event: Event) -> None:
        if isinstance(event, OuterStepped):
            pipe.send(("round", (event.step, event.ranks)))

    handle.add_sink(report_round)
    handle.hand_over(optimizer)  # a new process waits here for the next end of a round
    pipe.send(("joined", (handle.step, digest(net))))
    while handle.step < last and os.getppid() == job["parent"]:
        pick = torch.randint(len(data.train_labels), (BATCH,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(data.train_images[pick]), data.train_labels[pick]).backward()
        optimizer.step()
        pipe.send(("step", (handle.step, digest(net) if handle.step % every == 0 else None)))
        while pipe.poll():
            last = pipe.recv()
    net.eval()
    with torch.no_grad():
        right = net(data.test_images).argmax(1) == data.test_labels
    pipe.send(("ended", float(right.float().mean())))
    handle.close()
