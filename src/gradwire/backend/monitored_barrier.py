"""Roll call: torch's monitored barrier. Rank 0 hears from all, names those that did not come, and tells the rest.

It fails without harming the group: who was late may try again.
"""

from __future__ import annotations

import contextlib
import time
from datetime import timedelta
from typing import Final

import torch

from gradwire.backend import tags
from gradwire.backend.errors import CollectiveError
from gradwire.backend.peer_group import PeerGroup, withdraw
from gradwire.errors import LinkError
from gradwire.transport.wires.base import Transfer

_WORDS: Final = 1024
# Rank 0 may use the whole timeout; its verdict needs time to travel, and ranks do not begin at the same moment.
_GRACE: Final = 2.0


def roll_call(circle: PeerGroup, number: int, timeout: timedelta, wait_all: bool) -> None:
    """CollectiveError on every rank that came, when some did not."""
    deadline = time.monotonic() + timeout.total_seconds()
    if circle.rank == 0:
        _call(circle, number, timeout, wait_all)
    else:
        _answer(circle, number, deadline)


def _call(circle: PeerGroup, number: int, timeout: timedelta, wait_all: bool) -> None:
    deadline = time.monotonic() + timeout.total_seconds()
    room = {peer: torch.empty(1, dtype=torch.uint8) for peer in circle.peers}
    posts = {peer: circle.post(peer, box, tags.roll_call(circle.group, number, False)) for peer, box in room.items()}
    verdict = _verdict(posts, deadline, f"{timeout.total_seconds() * 1000:g} ms", wait_all)
    words = torch.frombuffer(bytearray((verdict or " ").encode()[:_WORDS]), dtype=torch.uint8)
    sends = [circle.send(peer, words, tags.roll_call(circle.group, number, True)) for peer in circle.peers]
    for transfer in posts.values():
        withdraw(transfer)
    if verdict:
        raise CollectiveError(verdict)
    for transfer in sends:
        _arrived(transfer, deadline)


def _answer(circle: PeerGroup, number: int, deadline: float) -> None:
    words = torch.empty(_WORDS, dtype=torch.uint8)
    verdict = circle.post(0, words, tags.roll_call(circle.group, number, True))
    here = torch.ones(1, dtype=torch.uint8)
    circle.send(0, here, tags.roll_call(circle.group, number, False))
    if not _arrived(verdict, deadline + _GRACE):
        withdraw(verdict)
        raise CollectiveError(_received(circle.rank, "no message; is rank 0 running?"))
    text = bytes(words[: verdict.wait(0).size].numpy()).decode(errors="replace").strip()
    if text:
        raise CollectiveError(_received(circle.rank, text))


def _arrived(transfer: Transfer, deadline: float) -> bool:
    with contextlib.suppress(TimeoutError, LinkError):
        transfer.wait(max(0.0, deadline - time.monotonic()))
        return True
    return False


def _verdict(posts: dict[int, Transfer], deadline: float, limit: str, wait_all: bool) -> str:
    """Who did not come, in the words of gloo; "" when all did."""
    missing: list[int] = []
    for peer in sorted(posts):
        if not wait_all and time.monotonic() >= deadline and not posts[peer].done:
            return f"Rank 0 timed out in monitoredBarrier after {limit}, before rank {peer} came"
        if not _arrived(posts[peer], deadline):
            missing.append(peer)
            if not wait_all:
                return f"Rank {peer} failed to pass monitoredBarrier in {limit} (later ranks: wait_all_ranks=True)"
    return f"Ranks {', '.join(map(str, missing))} failed to pass monitoredBarrier in {limit}" if missing else ""


def _received(rank: int, words: str) -> str:
    return (
        f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
        f"rank 0: {words}"
    )
