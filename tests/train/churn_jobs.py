"""What a rank of a job with local steps and an elastic plan runs, also as the process that replaces a dead one."""

from __future__ import annotations

import itertools
import json
import os
import time
import zlib
from pathlib import Path
from signal import SIGKILL
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire import attach  # the fork server imports it once
from gradwire.decide.base import Job
from gradwire.events import Event, OuterStepped
from gradwire.integrations.rejoin import rejoining
from gradwire.level import Level
from gradwire.types import Decision, StepFacts, View
from tests.train.jobs import train_step

EVERY = 4
# Rounds that a restarted rank still makes.
MORE = 5
# Local steps of rounds whose length changes.
LENGTHS = (20, 10)


class SmallNet(nn.Module):
    """With buffers of both kinds: running statistics and a counter."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(40, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 5))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs)  # type: ignore[no-any-return]


def digest(net: nn.Module) -> int:
    """Of weights and buffers."""
    total = 0
    for one in net.state_dict().values():
        total = zlib.crc32(one.detach().contiguous().numpy().tobytes(), total)
    return total


class Journal:
    """One line of JSON for each fact, which survives the process."""

    def __init__(self, folder: str, rank: int) -> None:
        self._file = (Path(folder) / f"{rank}-{os.getpid()}.jsonl").open("a", buffering=1)

    def add(self, **facts: Any) -> None:
        self._file.write(json.dumps(facts) + "\n")

    def outer_step(self, event: Event) -> None:
        if isinstance(event, OuterStepped):
            self.add(round=event.step, ranks=event.ranks, local=event.local_steps)


def train_voted(rank: int, config: dict[str, Any], folder: str, dies_at: int | None) -> None:
    """As `train`, with rounds of changing length: the coordinator's controller proposes one LENGTHS after the other."""
    torch.set_num_threads(1)
    last, journal = Path(folder) / "last", Journal(folder, rank)
    net = SmallNet()
    model = DistributedDataParallel(net, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    handle = attach(model, config, optimizer=optimizer, sync_every="auto")
    handle._built.governor._controller = Scripted()
    handle.add_sink(journal.outer_step)
    handle.hand_over(optimizer)
    if rejoining():
        last.with_suffix(".draft").write_text(str(handle.step + 100))
        last.with_suffix(".draft").rename(last)
    while handle.step < (int(last.read_text()) if last.exists() else 100_000):
        if handle.step == dies_at:
            os.kill(os.getpid(), SIGKILL)
        train_step(model, optimizer, rank, handle.step)
        ended = handle.step_in_round == 0
        journal.add(step=handle.step, digest=digest(net) if ended else None, next=handle.sync_every if ended else None)
        time.sleep(0.01)
    handle.close()


class Scripted:
    """In the place of a controller."""

    def __init__(self) -> None:
        self._lengths = itertools.cycle(LENGTHS)

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        return Decision(Level.parse("int8"), "the test's script", sync_every=next(self._lengths))


def train_until_told(rank: int, config: dict[str, Any], folder: str, width: int = 64) -> None:
    """Trains until the file `last` says how many steps the job makes, or until a file says that this rank leaves."""
    torch.set_num_threads(1)
    leave, journal = Path(folder) / f"leave-{rank}", Journal(folder, rank)
    net = SmallNet(width)
    model = DistributedDataParallel(net, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    handle = attach(model, config, optimizer=optimizer, sync_every=EVERY)
    handle.add_sink(journal.outer_step)
    handle.hand_over(optimizer)
    if rejoining():
        journal.add(step=handle.step, digest=digest(net))
    while handle.step < last_step(folder) and not (handle.step_in_round == 0 and leave.exists()):
        train_step(model, optimizer, rank, handle.step)
        journal.add(step=handle.step, digest=digest(net) if handle.step % EVERY == 0 else None)
        time.sleep(0.05)
    handle.close()


def last_step(folder: str) -> int:
    last = Path(folder) / "last"
    return int(last.read_text()) if last.exists() else 100_000


def train(rank: int, config: dict[str, Any], folder: str, dies_at: int | None) -> None:
    """Trains until the file `last` says how many steps the job makes; dies before step `dies_at`. A restarted rank
    writes that file soon after it joined."""
    torch.set_num_threads(1)
    last, journal = Path(folder) / "last", Journal(folder, rank)
    net = SmallNet()
    model = DistributedDataParallel(net, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    handle = attach(model, config, optimizer=optimizer, sync_every=EVERY)
    handle.add_sink(journal.outer_step)
    handle.hand_over(optimizer)
    if rejoining():
        journal.add(joined=handle.step, digest=digest(net))
        last.with_suffix(".draft").write_text(str(handle.step + EVERY * MORE))
        last.with_suffix(".draft").rename(last)
    while handle.step < (int(last.read_text()) if last.exists() else 100_000):
        if handle.step == dies_at:
            os.kill(os.getpid(), SIGKILL)
        train_step(model, optimizer, rank, handle.step)
        journal.add(step=handle.step, digest=digest(net) if handle.step % EVERY == 0 else None)
        time.sleep(0.05)
    handle.close()
