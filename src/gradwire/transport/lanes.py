"""Lanes over an existing process group: new groups over the same ranks, with the fastest way to use their backend."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

from gradwire.clock import Clock
from gradwire.errors import LinkError
from gradwire.transport.base import Lane
from gradwire.transport.collective import CollectiveLane
from gradwire.transport.mesh import MeshLane

# Backends whose direct sends are the fastest way to exchange, and tell when each peer's part arrived.
BY_SENDS = ("gloo", "gradwire")


def open_lanes(group: dist.ProcessGroup, count: int, timeout: float, clock: Clock) -> list[Lane]:
    """Make `count` groups over the members of `group`; every member calls this at the same point."""
    ranks = dist.get_process_group_ranks(group)
    lane = MeshLane if dist.get_backend(group) in BY_SENDS else CollectiveLane
    everyone = len(ranks) == dist.get_world_size()
    return [lane(_new_group(group, ranks, timeout, local=not everyone), clock) for _ in range(count)]


def _new_group(group: dist.ProcessGroup, ranks: Sequence[int], timeout: float, local: bool) -> dist.ProcessGroup:
    try:
        made = dist.new_group(
            list(ranks),
            timeout=timedelta(seconds=timeout),
            backend=dist.get_backend(group),
            use_local_synchronization=local,
        )
    except RuntimeError as error:
        raise LinkError(
            f"attach: not all of {len(ranks)} ranks came within {timeout:g} s ({error}); every rank must attach at the "
            "same point, and where one is started through gradwire.run, all must be: use torchrun, not a launcher "
            "inside the script"
        ) from error
    assert isinstance(made, dist.ProcessGroup)  # this rank is a member
    return made
