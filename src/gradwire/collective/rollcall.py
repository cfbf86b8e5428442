"""Roll call: torch's monitored barrier. Rank 0 hears from all, names those that did not come, and tells the rest.

It fails without harming the group: who was late may try again.
"""

from __future__ import annotations

import contextlib
import time
from datetime import timedelta
from typing import Final

import torch

from gradwire.collective import tags
from gradwire.collective.circle import Circle, withdraw
from gradwire.collective.failure import CollectiveError
from gradwire.errors import LinkError
from gradwire.transport.wire import Transfer

_WORDS: Final = 1024
# Rank 0 may use the whole timeout; its verdict needs time to travel, and ranks do not begin at the same moment.
_GRACE: Final = 2.0


def roll_call(circle: Circle, number: int, timeout: timedelta, wait_all: bool) -> None:
    """CollectiveError on every rank that came, when some did not."""
    deadline = time.monotonic() + timeout.total_seconds()
    if circle.rank == 0:
        _call(circle, number, deadline, wait_all)
    else:
        _answer(circle, number, deadline)


def _call(circle: Circle, number: int, deadline: float, wait_all: bool) -> None:
    room = {peer: torch.empty(1, dtype=torch.uint8) for peer in circle.peers}
    posts = {peer: circle.post(peer, box, tags.roll_call(circle.group, number, False)) for peer, box in room.items()}
    missing: list[int] = []
    for peer in sorted(posts):
        if not _arrived(posts[peer], deadline):
            missing.append(peer)
            if not wait_all:
                break
    verdict = _verdict(missing, wait_all) if missing else ""
    words = torch.frombuffer(bytearray((verdict or " ").encode()[:_WORDS]), dtype=torch.uint8)
    sends = [circle.send(peer, words, tags.roll_call(circle.group, number, True)) for peer in circle.peers]
    for transfer in posts.values():
        withdraw(transfer)
    if missing:
        raise CollectiveError(verdict)
    for transfer in sends:
        _arrived(transfer, deadline)


def _answer(circle: Circle, number: int, deadline: float) -> None:
    words = torch.empty(_WORDS, dtype=torch.uint8)
    verdict = circle.post(0, words, tags.roll_call(circle.group, number, True))
    here = torch.ones(1, dtype=torch.uint8)
    circle.send(0, here, tags.roll_call(circle.group, number, False))
    if not _arrived(verdict, deadline + _GRACE):
        withdraw(verdict)
        raise CollectiveError(f"monitored barrier: rank {circle.rank} heard nothing from rank 0; is it there?")
    text = bytes(words[: verdict.wait(0).size].numpy()).decode(errors="replace").strip()
    if text:
        raise CollectiveError(text)


def _arrived(transfer: Transfer, deadline: float) -> bool:
    with contextlib.suppress(TimeoutError, LinkError):
        transfer.wait(max(0.0, deadline - time.monotonic()))
        return True
    return False


def _verdict(missing: list[int], wait_all: bool) -> str:
    ranks = ", ".join(map(str, missing))
    if wait_all:
        return f"Ranks {ranks} failed to pass monitoredBarrier in time (monitored barrier waited for all ranks)"
    return (
        f"Rank {ranks} failed to pass monitoredBarrier in time; later ranks were not looked at (wait_all_ranks=False)"
    )
