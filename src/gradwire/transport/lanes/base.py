"""Lane: the interface of lanes, and the operations that a group of ranks runs on them.

An exchange (see `gradwire/exchange/`) is a generator of operations. A lane starts them one after another, in the same
order on every rank, and returns a Pending to wait for. Every wait ends, by completion or by LinkError.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from gradwire.types import Energies, all_reduce_bytes

# Byte ranges (offset, length) of one part.
Ranges = tuple[tuple[int, int], ...]


@dataclass(slots=True)
class Losses:
    """What an AllToAll may lose, and, once it is done, what it lost. Lanes that lose nothing leave it unchanged.

    A lane waits for the share `tolerance` of each part until the deadline, and for the first `critical[r]` bytes of the
    part for rank r however long that takes. `energies[r]` says what its other bytes are worth, and the least of that is
    lost. `missing[r]` is what is missing (and zero) in the part from rank r.
    `undelivered()` waits until every receiver has reported what did not reach it, and returns that by receiver; until
    then the parts sent must not be changed. `reported()` is whether it would return at once.
    """

    tolerance: float
    critical: tuple[int, ...]
    energies: tuple[Energies | None, ...] = ()
    missing: dict[int, Ranges] = field(default_factory=dict)
    undelivered: Callable[[], dict[int, Ranges]] = dict
    reported: Callable[[], bool] = lambda: True


@dataclass(frozen=True, slots=True)
class AllToAll:
    """Part r of `send` goes to rank r; part r of `receive` comes from rank r. Parts are equal.

    With `losses`, a lane may lose some bytes and reports which; without, every byte arrives.
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


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Rank 0's `tensor` is copied into every other rank's."""

    tensor: Tensor

    def wire_bytes(self, world_size: int) -> int:
        """What rank 0 sends; the others send nothing."""
        return self.tensor.nbytes * (world_size - 1)


Op = AllToAll | AllGather | AllReduce | Broadcast


@dataclass(frozen=True, slots=True)
class Timing:
    """One finished operation: what it was, the bytes this rank sent, and when it ran (monotonic seconds).

    `arrivals` is when each peer's part was seen to have arrived, where the lane knows; it may have arrived earlier.
    """

    kind: str
    nbytes: int
    started: float
    finished: float
    arrivals: tuple[tuple[int, float], ...] = ()


class Pending(Protocol):
    """A started operation."""

    def wait(self) -> Timing:
        """Return when everything has been received and what was sent may be changed; raise LinkError when the operation
        failed or its deadline passed. A lane may still be sending: a failure of that is raised by a later operation."""
        ...


class Lane(Protocol):
    """Starts operations in order; all ranks use their n-th lane for the same operations."""

    def start(self, op: Op) -> Pending: ...

    def close(self) -> None: ...
