"""What goes wrong in a real job, and is survived, is in its recording."""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from gradwire import carry
from gradwire.decide.guard import Guard
from gradwire.errors import NoAnswerError
from gradwire.events import Faulted
from tests.observe.recordings import fold
from tests.train import jobs
from tests.train.ranks import Ranks

STEPS = 14


def mishaps(rank: int, world: int, record: str) -> None:
    """No UDP; the guard finds at its first look that compression hurts; the last rank stalls once."""
    from gradwire import attach

    def silence(*_: object) -> None:
        raise NoAnswerError("rank 1 at 127.0.0.1 port 9 does not answer")

    def hurts(self: Guard, *_: object) -> int | None:
        self.reason = "the loss rose to 9 from 1"
        return 0

    meet, check = carry.meet, Guard.check
    carry.meet, Guard.check = silence, hurts  # type: ignore[assignment,method-assign]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = DistributedDataParallel(jobs.small_net(), bucket_cap_mb=0.02)
            handle = attach(model, {"level": "auto", "transport": {"kind": "ltp", "timeout": 30.0}}, record=record)
        for step in range(STEPS):
            if rank == world - 1 and step == 6:
                time.sleep(1.5)
            inputs, labels = jobs.batch(rank, step)
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        handle.close()
    finally:
        carry.meet, Guard.check = meet, check  # type: ignore[method-assign]


def test_faults_that_were_survived_are_told_by_one_rank(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(3, mishaps, str(tmp_path / "run"))
    _, records = fold(tmp_path / "run")
    told = {record.event.kind: record.event for record in records if isinstance(record.event, Faulted)}
    assert {record.rank for record in records if isinstance(record.event, Faulted)} == {0}
    assert "TCP instead" in told["fallback"].detail
    late = told["late_rank"]
    assert (late.peer, late.step) == (2, 6)
    assert "1." in late.detail
    assert "loss rose" in told["guard"].detail
