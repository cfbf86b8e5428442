"""Monitored barrier: a barrier in which rank 0 names the ranks that did not reach it, as in gloo.

    1. every other rank sends "here" to rank 0
    2. rank 0 waits for all of them, or until the deadline
    3. rank 0 sends its result to every rank; where ranks are missing, all that came raise CollectiveError

A failure leaves the group usable: late ranks may try again. `patch_torch` makes `torch.distributed.monitored_barrier`
accept gradwire groups.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradwire.backend import tags
from gradwire.backend.backend_base import gradwire_group_of
from gradwire.backend.errors import CollectiveError
from gradwire.backend.peer_group import PeerGroup, cancel_transfer
from gradwire.errors import LinkError
from gradwire.transport.wires.base import Transfer

_RESULT_BYTES: Final = 1024
# Rank 0 may use the whole timeout; its result needs time to arrive, and ranks do not start at the same moment.
_GRACE: Final = 2.0
_MARK: Final = "takes_gradwire_groups"


def monitored_barrier(group: PeerGroup, number: int, timeout: timedelta, wait_all: bool) -> None:
    """CollectiveError on every rank that came, when some did not."""
    deadline = time.monotonic() + timeout.total_seconds()
    if group.rank == 0:
        _collect(group, number, timeout, wait_all)
    else:
        _report(group, number, deadline)


def patch_torch(kind: type[Any]) -> None:
    """Make torch's function call `monitored_barrier` of groups of type `kind`; other groups get torch's own.

    Torch's function refuses every backend but gloo by its name. Called when the first gradwire group is made, so that a
    job without one keeps torch's function.
    """
    original = distributed_c10d.monitored_barrier
    if hasattr(original, _MARK):
        return
    patched = _patched(original, kind)
    setattr(patched, _MARK, True)
    distributed_c10d.monitored_barrier = patched
    dist.monitored_barrier = patched


def _patched(original: Callable[..., None], kind: type[Any]) -> Callable[..., None]:
    @functools.wraps(original)
    def barrier(group: Any = None, timeout: timedelta | float | None = None, wait_all_ranks: bool = False) -> None:
        chosen = gradwire_group_of(dist.group.WORLD if group is None else group)
        if not isinstance(chosen, kind):
            return original(group, timeout, wait_all_ranks)
        seconds = timedelta(seconds=timeout) if isinstance(timeout, int | float) else timeout
        return chosen.monitored_barrier(seconds, wait_all_ranks)  # type: ignore[no-any-return]

    return barrier


def _collect(group: PeerGroup, number: int, timeout: timedelta, wait_all: bool) -> None:
    """Rank 0's part."""
    deadline = time.monotonic() + timeout.total_seconds()
    here_tag, result_tag = (tags.monitored_barrier(group.number, number, result) for result in (False, True))
    posts = {peer: group.post(peer, torch.empty(1, dtype=torch.uint8), here_tag) for peer in group.peers}
    failure = _failure(posts, deadline, f"{timeout.total_seconds() * 1000:g} ms", wait_all)
    result = torch.frombuffer(bytearray((failure or " ").encode()[:_RESULT_BYTES]), dtype=torch.uint8)
    sends = [group.send(peer, result, result_tag) for peer in group.peers]
    for transfer in posts.values():
        cancel_transfer(transfer)
    if failure:
        raise CollectiveError(failure)
    for transfer in sends:
        _arrived(transfer, deadline)


def _report(group: PeerGroup, number: int, deadline: float) -> None:
    """Every other rank's part."""
    buffer = torch.empty(_RESULT_BYTES, dtype=torch.uint8)
    result = group.post(0, buffer, tags.monitored_barrier(group.number, number, True))
    group.send(0, torch.ones(1, dtype=torch.uint8), tags.monitored_barrier(group.number, number, False))
    if not _arrived(result, deadline + _GRACE):
        cancel_transfer(result)
        raise CollectiveError(_received(group.rank, "no message; is rank 0 running?"))
    failure = bytes(buffer[: result.wait(0).size].numpy()).decode(errors="replace").strip()
    if failure:
        raise CollectiveError(_received(group.rank, failure))


def _arrived(transfer: Transfer, deadline: float) -> bool:
    with contextlib.suppress(TimeoutError, LinkError):
        transfer.wait(max(0.0, deadline - time.monotonic()))
        return True
    return False


def _failure(posts: dict[int, Transfer], deadline: float, limit: str, wait_all: bool) -> str:
    """Which ranks did not come, in gloo's words; "" when all did."""
    missing: list[int] = []
    for peer in sorted(posts):
        if not wait_all and time.monotonic() >= deadline and not posts[peer].done:
            return f"Rank 0 timed out in monitoredBarrier after {limit}, before rank {peer} came"
        if not _arrived(posts[peer], deadline):
            missing.append(peer)
            if not wait_all:
                return f"Rank {peer} failed to pass monitoredBarrier in {limit} (later ranks: wait_all_ranks=True)"
    return f"Ranks {', '.join(map(str, missing))} failed to pass monitoredBarrier in {limit}" if missing else ""


def _received(rank: int, message: str) -> str:
    return (
        f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
        f"rank 0: {message}"
    )
