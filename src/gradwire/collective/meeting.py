"""Meeting: the members of a group come together on a wire.

The default group opens the job's wire; groups made from its members use the same one, each with a number of its own in
every tag. The wire is closed by the last group that leaves it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from torch._C._distributed_c10d import Store

from gradwire.collective.circle import Circle
from gradwire.collective.tags import GROUPS_MOST
from gradwire.errors import ConfigError
from gradwire.transport.wire import Wire

_GROUPS, _NUMBER = "gradwire/groups", "gradwire/number"


class SharedWire:
    """A wire and how many groups use it."""

    def __init__(self, wire: Wire, store: Store) -> None:
        self.wire = wire
        self.store = store
        self._users = 0
        self._lock = threading.Lock()

    def join(self) -> None:
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self.wire.close()


def convene(shared: SharedWire, store: Store, rank: int, members: Sequence[int]) -> Circle:
    """The circle of a new group: its first rank draws the number, the others read it. Every member calls this."""
    if rank == 0:
        number = shared.store.add(_GROUPS, 1)
        store.set(_NUMBER, str(number))
    number = int(store.get(_NUMBER))
    if not 0 <= number < GROUPS_MOST:
        raise ConfigError(f"new_group: more than {GROUPS_MOST} groups were made in this job; destroy what is not used")
    shared.join()
    return Circle(shared.wire, number, rank, members)
