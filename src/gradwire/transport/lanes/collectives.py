"""Collectives: a lane that runs operations as collectives of a torch process group.

Each lane is a process group of its own, so that the order of its operations depends on nothing else in the process:
not on the user's collectives, not on DDP's, not on other lanes.
"""

from __future__ import annotations

import contextlib
import re

import torch.distributed as dist

from gradwire.clock import Clock
from gradwire.errors import LinkError
from gradwire.transport.exit_wait import track
from gradwire.transport.lanes.base import AllGather, AllToAll, Broadcast, Op, Pending, Timing

# torch 2.13 renamed it; both names take the same arguments.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

# What torch adds to the reason: the source line, the callbacks it passed, and a guess at the cause.
_INSIDE = re.compile(r"Got the following error when running the callback: |\bRuntimeError: |\[/[^\]]*:\d+\] ")
# Gloo names the connection that broke. Its port identifies no rank; `transport/lost_rank.py` names the rank.
_SOCKET = re.compile(r" ?\[[0-9a-fA-F.:%a-z]+\]:\d+")
_GUESS = "This is typically caused by"


class CollectivePending:
    """A torch Work with its timing; the time of completion is taken when it completes, not when somebody waits."""

    def __init__(self, work: dist.Work, op: Op, world_size: int, clock: Clock) -> None:
        self._work = work
        self._clock = clock
        self._kind = type(op).__name__
        self._nbytes = op.wire_bytes(world_size)
        self._started = clock.now()
        self._finished: float | None = None
        work.get_future().add_done_callback(track(self._record_time))

    def _record_time(self, _: object) -> None:
        self._finished = self._clock.now()

    def wait(self) -> Timing:
        try:
            self._work.wait()
        except RuntimeError as error:
            raise LinkError(explain(error, self._kind)) from error
        finished = self._finished if self._finished is not None else self._clock.now()
        return Timing(self._kind, self._nbytes, self._started, finished)


class CollectiveLane:
    """One process group, used by one thread."""

    def __init__(self, group: dist.ProcessGroup, clock: Clock) -> None:
        self._group = group
        self._clock = clock
        self._world_size = group.size()

    def start(self, op: Op) -> Pending:
        try:
            work = self._issue(op)
        except RuntimeError as error:
            raise LinkError(explain(error, type(op).__name__)) from error
        return CollectivePending(work, op, self._world_size, self._clock)

    def close(self) -> None:
        """Destroy the group, unless all groups of the job are destroyed already."""
        with contextlib.suppress(ValueError, AssertionError):
            dist.destroy_process_group(self._group)

    def _issue(self, op: Op) -> dist.Work:
        work: dist.Work
        if isinstance(op, AllToAll):
            work = dist.all_to_all_single(op.receive, op.send, group=self._group, async_op=True)
        elif isinstance(op, AllGather):
            work = _all_gather(op.receive.view(-1), op.send, group=self._group, async_op=True)
        elif isinstance(op, Broadcast):
            work = dist.broadcast(op.tensor, dist.get_global_rank(self._group, 0), group=self._group, async_op=True)
        else:
            how = dist.ReduceOp.MAX if op.maximum else dist.ReduceOp.SUM
            work = dist.all_reduce(op.tensor, how, group=self._group, async_op=True)
        return work


def explain(error: RuntimeError, kind: str) -> str:
    """One line for a failed operation: what failed, why, and what to try."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    text = _SOCKET.sub("", _INSIDE.sub("", text)).partition(_GUESS)[0].rstrip(". ")
    return (
        f"{kind} did not complete: {text}. A peer stopped or cannot be reached; "
        "GRADWIRE_TRANSPORT_TIMEOUT sets how long to wait"
    )
