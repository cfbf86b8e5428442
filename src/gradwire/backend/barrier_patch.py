"""Monitored: lets `torch.distributed.monitored_barrier` take groups of ours.

Torch's function compares the name of a group's backend with gloo's and refuses every other one before it looks at the
group. Groups that are not ours still get torch's function, unchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradwire.backend.backend_base import group_behind

_MARK: Final = "takes_gradwire_groups"


def take_groups(kind: type[Any]) -> None:
    """Make torch's function call `monitored_barrier` of groups of type `kind`. Called when the first such group is
    made, so that a job without one keeps torch's function."""
    theirs = distributed_c10d.monitored_barrier
    if hasattr(theirs, _MARK):
        return
    ours = _wrapped(theirs, kind)
    setattr(ours, _MARK, True)
    distributed_c10d.monitored_barrier = ours
    dist.monitored_barrier = ours


def _wrapped(theirs: Callable[..., None], kind: type[Any]) -> Callable[..., None]:
    @functools.wraps(theirs)
    def monitored_barrier(
        group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        chosen = group_behind(dist.group.WORLD if group is None else group)
        if not isinstance(chosen, kind):
            return theirs(group, timeout, wait_all_ranks)
        seconds = timedelta(seconds=timeout) if isinstance(timeout, int | float) else timeout
        return chosen.monitored_barrier(seconds, wait_all_ranks)  # type: ignore[no-any-return]

    return monitored_barrier
