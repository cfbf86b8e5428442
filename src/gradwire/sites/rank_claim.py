"""Rank claim: no two live processes run as the same rank of a job that new processes join.

In: torch's store. Out: life signs of every rank; the rank of a new process, or an error where a live process has it.

    1. each process of the job changes the value at its rank about once a second (`LifeSigns.give`)
    2. a process that joins looks at the value of its rank for SILENCE seconds; if it changes, the rank is taken
    3. the first process that claims the rank at this value has it. Another one looks longer, because the first may have
       died before its first sign; if it gave one, the rank is taken

Nothing waits for a process that joins. Where the store is slow or a rank is suspended, a sign may be missed: then the
wires of the other ranks still refuse a second process of one rank.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Final

from torch._C._distributed_c10d import PrefixStore, Store

from gradwire.errors import ConfigError, LinkError

# Seconds for which a value that does not change means that no process is there, and the same where another process has
# claimed the rank before: it gives its first sign as soon as it has read the job's record.
SILENCE: Final = 2.5
STARTING: Final = 10.0
# Seconds between two reads of the store.
POLL: Final = 0.25


class LifeSigns:
    """The signs of this process, which runs as `rank`."""

    def __init__(self, store: Store, rank: int) -> None:
        self._ranks, self._rank, self._count = _ranks(store), rank, 0

    def give(self) -> None:
        self._count += 1
        self._ranks.set(str(self._rank), f"{_own_name()} {self._count}")


def publish_places(store: Store, world_size: int, places: int) -> None:
    """How many ranks the job has at its start and may have, for processes that take any free one."""
    _ranks(store).set("places", f"{world_size} {places}")


def claim_rank(store: Store, rank: int) -> None:
    """ConfigError where a live process has this rank."""
    ranks = _ranks(store)
    seen = _sign(ranks, rank)
    first = _claim(ranks, rank, seen)
    if seen.startswith(f"{_own_name()} ") or (first and not seen):
        return
    deadline = time.monotonic() + (SILENCE if first else STARTING)
    while time.monotonic() < deadline:
        if _sign(ranks, rank) != seen:
            raise ConfigError(
                f"RANK is {rank}, and a live process runs as rank {rank} of this job; give this process a number that "
                "is not in use, or end the other one first"
            )
        time.sleep(POLL)


def take_free_rank(store: Store, patience: float) -> tuple[int, int]:
    """The lowest rank that no live process has and nobody else claimed, and a world size that it fits in: that of the
    start, or one more than the rank."""
    ranks, deadline = _ranks(store), time.monotonic() + patience
    while not ranks.check(["places"]):
        if time.monotonic() > deadline:
            raise LinkError(
                f"torch's store has no job that takes new processes (waited {patience:g} s); start it with a plan and "
                "planning.elastic, and this process with the address of its store"
            )
        time.sleep(POLL)
    world_size, places = _numbers(ranks.get("places"))
    before = [_sign(ranks, rank) for rank in range(places)]
    time.sleep(SILENCE)
    for rank, seen in enumerate(before):
        if _sign(ranks, rank) == seen and _claim(ranks, rank, seen):
            return rank, max(world_size, rank + 1)
    raise LinkError(f"all {places} ranks of the job are in use; a job with more places has a higher planning.max_ranks")


def _claim(ranks: Store, rank: int, seen: str) -> bool:
    """Whether this process is the first that claims the rank at this value."""
    own = _own_name()
    return ranks.compare_set(f"claim/{rank}/{seen}", "", own).decode(errors="replace") == own


def _sign(ranks: Store, rank: int) -> str:
    return ranks.get(str(rank)).decode(errors="replace")[:200] if ranks.check([str(rank)]) else ""


def _numbers(text: bytes) -> tuple[int, int]:
    """Anyone can write to the store."""
    try:
        world_size, places = map(int, text.split())
        return world_size, min(places, 1 << 16)
    except ValueError as error:
        raise LinkError("torch's store has no number of places; does another program write to it?") from error


def _own_name() -> str:
    """Of this process; the same for all its models."""
    return f"{socket.gethostname()}/{os.getpid()}"


def _ranks(store: Store) -> PrefixStore:
    return PrefixStore("gradwire/ranks", store)
