"""Wire: the interface of LTP, TCP and shared memory, which send tagged buffers between the ranks of a job.

In: peers' addresses, buffers, contracts. Out: Deliveries, with the byte ranges that are missing. Code written against
`Wire` runs on any of them. A wire reads and writes buffers in place, on its own thread or on the one that waits, so a
buffer given to `send` or `post` must not be touched until its Transfer is done. Missing data is a result; only a lost
peer raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import numpy as np

from gradwire.errors import ConfigError
from gradwire.types import Energies, LinkView

Reason = Literal["complete", "threshold", "deadline", "refused", "cancelled"]

# Payload of one LTP packet on the smallest path: 1200 bytes less header, tag and the data frame's header. The same on
# every wire, so that a contract valid on one is valid on all.
RECORD_LIMIT: Final = 1157
CRITICAL_LIMIT: Final = 8


@dataclass(frozen=True, slots=True)
class Contract:
    """What a transfer guarantees: `tolerance` 1.0 is reliable, less is the fraction waited for until the deadline.

    Bytes of one `element` arrive together. With `record`, bytes of one record do (self-describing sparse payloads).
    `critical` are byte ranges (offset, length) that arrive whatever the tolerance; of the other bytes, those with the
    most energy are sent first, and the tolerance holds for the energy as well. A reliable wire delivers everything
    and so meets every contract.
    """

    tolerance: float = 1.0
    element: int = 4
    record: int = 0
    critical: tuple[tuple[int, int], ...] = ()
    energies: Energies | None = None

    def check(self, size: int) -> None:
        if size <= 0:
            raise ConfigError("buffer: a transfer needs at least one byte")
        if not 0 < self.tolerance <= 1:
            raise ConfigError(
                f"tolerance: {self.tolerance} is outside 0..1; 1.0 is reliable, 0.98 does not wait for the last 2 %"
            )
        if not 1 <= self.element <= RECORD_LIMIT:
            raise ConfigError(f"element: {self.element} bytes; write 1 to {RECORD_LIMIT}")
        if not 0 <= self.record <= RECORD_LIMIT:
            raise ConfigError(f"record: {self.record} bytes do not fit every packet; write 0 (none) to {RECORD_LIMIT}")
        if len(self.critical) > CRITICAL_LIMIT:
            raise ConfigError(f"critical: {len(self.critical)} ranges; a transfer has at most {CRITICAL_LIMIT}")
        for offset, length in self.critical:
            if offset < 0 or length <= 0 or offset + length > size:
                raise ConfigError(f"critical: range ({offset}, {length}) is outside the buffer's {size} bytes")
        if self.energies is not None:
            check_energies(self.energies)


RELIABLE: Final = Contract()


def check_energies(energies: Energies) -> None:
    """Native code reads them by address."""
    if energies.offset < 0 or energies.span < 1:
        raise ConfigError(f"energies: span {energies.span}, offset {energies.offset}; write 1 or more, and 0 or more")
    if energies.values.dtype != np.float32 or not energies.values.flags.c_contiguous:
        raise ConfigError("energies: values must be contiguous float32; write np.ascontiguousarray(values, np.float32)")


@dataclass(frozen=True, slots=True)
class Delivery:
    """What arrived of one transfer. `missing` are byte ranges (offset, length); the receiver has zeros there."""

    peer: int
    size: int
    arrived: int
    missing: tuple[tuple[int, int], ...]
    reason: Reason
    elapsed: float

    @property
    def complete(self) -> bool:
        return self.arrived == self.size


class Transfer(Protocol):
    """A started transfer."""

    @property
    def peer(self) -> int: ...

    @property
    def done(self) -> bool:
        """Whether `wait` would return (or raise) at once."""
        ...

    def wait(self, timeout: float | None = None) -> Delivery:
        """The result; TimeoutError after `timeout` (the transfer continues), LinkError for a lost peer."""
        ...

    def cancel(self) -> None:
        """Stops the transfer. When this returns, the buffer is neither read nor written any more."""
        ...

    def detach(self) -> None:
        """Of a send: the caller gets its buffer back and may change it. The transfer continues from a copy of what is
        not confirmed yet; `wait` still returns its result."""
        ...


class Wire(Protocol):
    """This process's endpoint, connected to every peer. Safe to use from several threads."""

    @property
    def rank(self) -> int: ...

    @property
    def port(self) -> int:
        """The port of this endpoint: with the host's address, what peers give to `connect`."""
        ...

    def connect(self, peers: Mapping[int, tuple[str, int]], timeout: float | None = None) -> None:
        """Connects to every peer (rank -> host, port). LinkError names the peer that failed, and why."""
        ...

    def send(self, peer: int, buffer: Any, contract: Contract = RELIABLE, tag: int = 0) -> Transfer:
        """Starts sending `buffer` (bytes-like or a contiguous CPU tensor); `tag` pairs it with the peer's receive.

        Sends with one tag match the peer's posts in order. On a reliable wire a small buffer counts as delivered as
        soon as the wire has a copy; if the peer is lost after that, the next transfer raises.
        """
        ...

    def post(self, peer: int, buffer: Any, tag: int = 0, *, threshold: float = 0.0, deadline: float = 0.0) -> Transfer:
        """Offers `buffer` for the peer's next transfer with `tag`.

        `threshold` and `deadline` (seconds after the first packet) replace Early Close's learned limits when not 0;
        reliable wires ignore them.
        """
        ...

    def receive(self, peer: int, buffer: Any, tag: int = 0, timeout: float | None = None) -> Delivery:
        """Posts `buffer` and waits for it. On a timeout the receive is cancelled."""
        ...

    def stats(self) -> dict[int, dict[str, float]]:
        """Per connected peer: estimates (seconds, bytes per second) and counters."""
        ...

    def view(self, peer: int) -> LinkView:
        """The link to `peer` in the form that `sense` takes; empty when it is not connected."""
        ...

    def views(self) -> dict[int, LinkView]:
        """All links at once, by peer."""
        ...

    def close(self) -> None:
        """Closes all connections. Unfinished transfers end with LinkError."""
        ...
