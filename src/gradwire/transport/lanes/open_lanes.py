"""Open lanes: makes lanes over new process groups of an existing group's ranks; the backend decides their type."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from gradwire.clock import Clock
from gradwire.errors import LinkError
from gradwire.transport.lanes.base import Lane
from gradwire.transport.lanes.collectives import CollectiveLane
from gradwire.transport.lanes.sends import SendLane

# Backends where direct sends are the fastest exchange, and show when each peer's part arrived.
BY_SENDS = ("gloo", "gradwire")
HOST = torch.device("cpu")


def open_lanes(group: dist.ProcessGroup, count: int, timeout: float, clock: Clock) -> list[Lane]:
    """Make `count` groups over the members of `group`; every member calls this at the same point. Lanes carry tensors
    of host memory, where frames are: several NCCL communicators must not be used from several threads."""
    ranks = dist.get_process_group_ranks(group)
    backend = host_backend(group)
    lane = SendLane if backend in BY_SENDS else CollectiveLane
    everyone = len(ranks) == dist.get_world_size()
    return [lane(_new_group(backend, ranks, timeout, local=not everyone), clock) for _ in range(count)]


def duplicate_group(group: dist.ProcessGroup, timeout: float) -> dist.ProcessGroup:
    """A group of the same ranks and backend, for messages whose order has nothing to do with those of `group`. Every
    member calls this at the same point."""
    ranks = dist.get_process_group_ranks(group)
    return _new_group(dist.get_backend(group), ranks, timeout, local=len(ranks) != dist.get_world_size())


def group_of(ranks: Sequence[int], timeout: float) -> dist.ProcessGroup:
    """A group of these ranks of the job, for host memory; every one of them calls this at the same point."""
    world = dist.group.WORLD
    assert world is not None, "a job has begun"
    if len(ranks) == dist.get_world_size():
        return world
    return _new_group(host_backend(world), sorted(ranks), timeout, local=True)


def destroy_group(group: dist.ProcessGroup) -> None:
    """Close a group that was made by `duplicate_group`; nothing where all groups of the job are destroyed already."""
    with contextlib.suppress(ValueError, AssertionError):
        dist.destroy_process_group(group)


def host_backend(group: dist.ProcessGroup) -> str:
    """The backend for CPU tensors of these ranks: gloo where the group itself takes none (NCCL)."""
    whole = dist.get_backend(group)
    if whole in BY_SENDS:
        return whole
    return group._get_backend(HOST).name() if HOST in group._device_types else "gloo"


def _new_group(backend: str, ranks: Sequence[int], timeout: float, local: bool) -> dist.ProcessGroup:
    try:
        made = dist.new_group(
            list(ranks), timeout=timedelta(seconds=timeout), backend=backend, use_local_synchronization=local
        )
    except RuntimeError as error:
        raise LinkError(
            f"attach: not all of {len(ranks)} ranks made this call within {timeout:g} s ({error}); all ranks must "
            "attach at the same point, and all or none must be started through gradwire.run: use torchrun, not a "
            "launcher inside the script"
        ) from error
    assert isinstance(made, dist.ProcessGroup)  # this rank is a member
    return made
