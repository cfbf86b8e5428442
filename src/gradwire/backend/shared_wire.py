"""Shared wire: one wire for all groups of a job.

The default group opens the wire; groups of its members use the same one, each with its own number in every tag. The
last group that leaves the wire closes it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from torch._C._distributed_c10d import Store

from gradwire.backend.peer_group import PeerGroup
from gradwire.backend.tags import GROUPS_LIMIT
from gradwire.errors import ConfigError
from gradwire.transport.bootstrap.store_exchange import StoreExchange
from gradwire.transport.wires.base import Wire

_GROUPS: Final = "gradwire/groups"


class SharedWire:
    """A wire and the number of groups that use it."""

    def __init__(self, wire: Wire, store: Store) -> None:
        self.wire = wire
        self._store: Store | None = store
        self._users = 0
        self._lock = threading.Lock()

    def join(self) -> None:
        with self._lock:
            self._users += 1

    def next_number(self) -> int:
        """The number of the job's next group."""
        if self._store is None:
            raise ConfigError("new_group: the default group was destroyed")
        return self._store.add(_GROUPS, 1)

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self.wire.close()
            # A reference to a destroyed group must not keep the store: torch aborts a process that frees a file store
            # after its file is gone.
            self._store = None


def open_peer_group(shared: SharedWire, store: Store, rank: int, members: Sequence[int], timeout: float) -> PeerGroup:
    """The peers of a new group: its rank 0 takes the next number and publishes it. Every member calls this."""
    exchange = StoreExchange.open(store, "group", rank, len(members), timeout)
    if rank == 0:
        exchange.publish("number", shared.next_number())
    number = exchange.read("number", 0, int)
    if not 0 <= number < GROUPS_LIMIT:
        raise ConfigError(f"new_group: more than {GROUPS_LIMIT} groups were made in this job")
    shared.join()
    return PeerGroup(shared.wire, number, rank, members)
