"""Backend base: a group as one of torch's backends, where torch has a base class for those (`dist.BackendBase`).

Torch then makes a group of its own, keeps gradwire beside the backends of other devices, and calls these methods from
C++ by the names that torch's PyBackend looks for. Used with GRADWIRE_BACKEND_BASE=1 only: the tested torch has no
BackendBase, so this was run with a substitute for it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend

from gradwire.errors import ConfigError

VARIABLE: Final = "GRADWIRE_BACKEND_BASE"
# Methods that torch calls on a backend as it calls them on a group.
_SAME: Final = (
    "allreduce", "allreduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_single",
    "reduce_scatter_single_coalesced", "broadcast", "allgather", "allgather_coalesced", "all_gather_single",
    "all_gather_single_coalesced", "gather", "scatter", "alltoall", "all_to_all_single", "barrier", "send", "recv",
    "recv_anysource", "set_timeout", "shutdown", "abort", "getBackendName", "eager_connect_single_device",
    "_set_group_name", "_set_sequence_number_for_group", "_get_sequence_number_for_group",
)  # fmt: skip


def requested() -> bool:
    """Whether the variable asks for backends; ConfigError where this torch has no base class for them."""
    if os.environ.get(VARIABLE, "") in ("", "0"):
        return False
    if not hasattr(dist, "BackendBase"):
        raise ConfigError(f"{VARIABLE}: torch {torch.__version__} has no torch.distributed.BackendBase; unset it")
    return True


def as_backend(group: Any) -> Any:
    """A backend that forwards its calls to `group`."""
    return _kind(dist.BackendBase)(group)  # type: ignore[attr-defined, unused-ignore]


def gradwire_group_of(group: Any) -> Any:
    """The gradwire group that serves the CPU tensors of one of torch's groups; the group itself where there is none."""
    if type(group) is not dist.ProcessGroup:
        return group
    try:
        return getattr(group._get_backend(torch.device("cpu")), "gradwire_group", group)
    except RuntimeError:  # no backend for the CPU
        return group


@functools.cache
def _kind(base: Any) -> Any:
    class GradwireBackend(base):  # type: ignore[misc]
        supports_splitting = True
        supports_coalescing = True
        supports_time_estimate = False

        def __init__(self, group: Any) -> None:
            super().__init__(group.rank(), group.size())
            self.gradwire_group = group

        @property
        def options(self) -> Backend.Options:
            ours = self.gradwire_group.options
            theirs = Backend.Options(ours.backend, ours._timeout)
            theirs.global_ranks_in_group, theirs.group_name = ours.global_ranks_in_group, ours.group_name
            return theirs

        def allreduce_sparse(self, tensors: Any, opts: Any) -> dist.Work:
            return self.gradwire_group.allreduce(tensors, opts)  # type: ignore[no-any-return]

        def monitored_barrier(self, opts: Any, wait_all_ranks: bool = False) -> None:
            timeout = opts.timeout if opts.timeout.total_seconds() > 0 else None
            self.gradwire_group.monitored_barrier(timeout, wait_all_ranks)

        def start_coalescing(self) -> None:
            self.gradwire_group._start_coalescing()

        def end_coalescing(self) -> dist.Work:
            return self.gradwire_group._end_coalescing()  # type: ignore[no-any-return]

        def split(self, store: Any, ranks: Sequence[int], opts: Any) -> Any:
            part = self.gradwire_group.split_group(ranks, opts._timeout, None, opts.group_name)
            return None if part is None else GradwireBackend(part)

    for name in _SAME:
        setattr(GradwireBackend, name, _forward(name))
    return GradwireBackend


def _forward(name: str) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **named: Any) -> Any:
        return getattr(self.gradwire_group, name)(*args, **named)

    call.__name__ = name
    return call
