"""Attaching alone: one rank attaches and another does not, as when only one was started by gradwire.run."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from tests.train.ranks import Ranks


def attach_alone(rank: int, world: int) -> str:
    """The error of the rank that attaches."""
    model = DistributedDataParallel(nn.Linear(4, 4))
    if rank == 0:
        try:
            gradwire.attach(model, {"level": "int8", "transport": {"timeout": 1}})
        except gradwire.LinkError as error:
            return str(error)
    return "nothing"


def test_attaching_alone_fails_at_the_deadline_and_says_what_to_do() -> None:
    # A pool of its own: the group of a failed attach cannot be used by the next test.
    ranks = Ranks()
    error, other = ranks.run(2, attach_alone, timeout=60)
    ranks.close()
    assert "not all of 2 ranks made this call within 1 s" in error
    assert "torchrun" in error
    assert other == "nothing"
