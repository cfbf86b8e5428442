"""A rank that attaches while another does not, as when a launcher starts only the first through gradwire.run."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from tests.train.ranks import Ranks


def attach_alone(rank: int, world: int) -> str:
    """What the rank that attaches is told."""
    model = DistributedDataParallel(nn.Linear(4, 4))
    if rank == 0:
        try:
            gradwire.attach(model, {"level": "int8", "transport": {"timeout": 1}})
        except gradwire.LinkError as error:
            return str(error)
    return "nothing"


def test_attaching_alone_ends_at_the_deadline_with_what_to_do() -> None:
    # A pool of its own: the group of a failed attach is not fit for the next test.
    ranks = Ranks()
    told, other = ranks.run(2, attach_alone, timeout=60)
    ranks.close()
    assert "not all of 2 ranks made this call within 1 s" in told
    assert "torchrun" in told
    assert other == "nothing"
