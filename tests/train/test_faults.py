"""Faults: what a job survives is in its recording, and an attach that fails leaves no thread."""

from __future__ import annotations

import re
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from gradwire.decide.accuracy_guard import AccuracyGuard
from gradwire.errors import LinkError, NoAnswerError
from gradwire.events import Faulted
from gradwire.sense import stragglers
from gradwire.transport import carrier
from gradwire.units import parse_seconds
from tests.observe.recordings import fold
from tests.train import jobs
from tests.train.ranks import Ranks

STEPS = 14
STALL = 1.5


def train_with_faults(rank: int, world: int, record: str) -> None:
    """No UDP; the guard finds at its first check that compression hurts; the last rank stalls once."""
    from gradwire import attach

    def silence(*_: object) -> None:
        raise NoAnswerError("rank 1 at 127.0.0.1 port 9 does not answer")

    def hurts(self: AccuracyGuard, *_: object) -> bool:
        self.reason = "the loss rose to 9 from 1"
        return True

    connect, check, again = carrier.connect_ltp, AccuracyGuard.check, stragglers.AGAIN
    carrier.connect_ltp, AccuracyGuard.check = silence, hurts  # type: ignore[assignment,method-assign]
    stragglers.AGAIN = 0.0  # type: ignore[misc]  # on a busy machine the last rank may have been late before, and be named then
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = DistributedDataParallel(jobs.small_net(), bucket_cap_mb=0.02)
            handle = attach(model, {"level": "auto", "transport": {"kind": "ltp", "timeout": 30.0}}, record=record)
        for step in range(STEPS):
            if rank == world - 1 and step == 6:
                time.sleep(STALL)
            inputs, labels = jobs.batch(rank, step)
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        handle.close()
    finally:
        carrier.connect_ltp, AccuracyGuard.check = connect, check  # type: ignore[method-assign]
        stragglers.AGAIN = again  # type: ignore[misc]


def test_faults_that_were_survived_are_recorded_by_rank_0(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(3, train_with_faults, str(tmp_path / "run"))
    _, records = fold(tmp_path / "run")
    faults = [record.event for record in records if isinstance(record.event, Faulted)]
    by_kind = {fault.kind: fault for fault in faults}
    assert {record.rank for record in records if isinstance(record.event, Faulted)} == {0}
    assert "TCP instead" in by_kind["fallback"].detail
    # On a busy machine others may be late as well, at other steps.
    (stalled,) = [fault for fault in faults if (fault.kind, fault.peer, fault.step) == ("late_rank", 2, 6)]
    text = re.fullmatch(r"rank 2 had its gradient ready (.+) after the others", stalled.detail)
    assert text is not None, stalled.detail
    # The others may have been delayed too, but not by half of the stall.
    assert parse_seconds(text[1]) > STALL / 2
    assert "loss rose" in by_kind["guard"].detail


def fails_at_the_end_of_attach(rank: int, world: int, config: dict[str, object]) -> list[str]:
    """Another rank fails in the last part of attach; the threads that attach leaves."""
    from gradwire import attach
    from gradwire.runtime import builder

    def fail(*_: object) -> None:
        raise LinkError("rank 1 was lost")

    model, before = DistributedDataParallel(jobs.small_net()), set(threading.enumerate())
    original, builder.open_lost_rank_finder = builder.open_lost_rank_finder, fail  # type: ignore[assignment]
    try:
        with pytest.raises(LinkError, match="rank 1 was lost"):
            attach(model, config)
    finally:
        builder.open_lost_rank_finder = original
    return [thread.name for thread in set(threading.enumerate()) - before]


@pytest.mark.parametrize(
    "config",
    [{"level": "auto"}, {"plan": "star", "level": "int8", "planning": {"elastic": True}, "observe": {"verify": 5}}],
)
def test_an_attach_that_fails_at_its_end_leaves_no_thread(ranks: Ranks, config: dict[str, object]) -> None:
    assert ranks.run(2, fails_at_the_end_of_attach, config) == [[], []]
