"""The transport room's contract: operations that a group of ranks carries out together, and the lanes that run them.

An exchange (see `aggregate/`) is a generator of operations. A lane starts them one after another, in the same order on
every rank, and hands back something to wait for. Waiting ends by completion or by LinkError; never by nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from gradwire.types import all_reduce_bytes

# Byte ranges (offset, length) of one part.
Ranges = tuple[tuple[int, int], ...]


@dataclass(slots=True)
class Losses:
    """What an AllToAll may lose, and, once it is done, what it lost. Lanes that lose nothing leave it as it is.

    The share `tolerance` of each part is waited for until the deadline, and however long it takes the first
    `critical[r]` bytes of the one for rank r.
    `came[r]` is what is missing (and zero) in the part from rank r. `returned()` waits until every receiver has said
    what did not reach it, and gives that by receiver; until then the parts sent must not be changed.
    """

    tolerance: float
    critical: tuple[int, ...]
    came: dict[int, Ranges] = field(default_factory=dict)
    returned: Callable[[], dict[int, Ranges]] = dict


@dataclass(frozen=True, slots=True)
class AllToAll:
    """Part r of `send` goes to rank r; part r of `receive` comes from rank r. Parts are equal.

    With `losses`, a lane may lose some of the parts and says what; without, every byte arrives.
    """

    send: Tensor
    receive: Tensor
    losses: Losses | None = None

    def wire_bytes(self, world_size: int) -> int:
        return self.send.nbytes * (world_size - 1) // world_size


@dataclass(frozen=True, slots=True)
class AllGather:
    """`send` goes to everyone; part r of `receive` is what rank r sent."""

    send: Tensor
    receive: Tensor

    def wire_bytes(self, world_size: int) -> int:
        return self.send.nbytes * (world_size - 1)


@dataclass(frozen=True, slots=True)
class AllReduce:
    """`tensor` becomes the sum (or the maximum) over all ranks, in place."""

    tensor: Tensor
    maximum: bool = False

    def wire_bytes(self, world_size: int) -> int:
        return all_reduce_bytes(self.tensor.nbytes, world_size)


Op = AllToAll | AllGather | AllReduce


@dataclass(frozen=True, slots=True)
class Timing:
    """One finished operation: what it was, the bytes this rank sent, and when it ran (monotonic seconds).

    `arrivals` tells when each peer's part was there, where the lane can tell; no earlier than it was, perhaps later.
    """

    kind: str
    nbytes: int
    started: float
    finished: float
    arrivals: tuple[tuple[int, float], ...] = ()


class Pending(Protocol):
    """An operation under way."""

    def wait(self) -> Timing:
        """Return when it is done; raise LinkError when it failed or its deadline passed."""
        ...


class Lane(Protocol):
    """Starts operations in order; all ranks use their n-th lane for the same operations."""

    def start(self, op: Op) -> Pending: ...

    def close(self) -> None: ...
