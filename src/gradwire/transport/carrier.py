"""Carrier: opens the lanes (over the process group, LTP or TCP) that the pipeline sends on.

The choice is made once, for all ranks. LTP needs every pair of ranks to reach each other by UDP. Where a pair gets no
answer, the rendezvous fails on every rank, rank 0 warns once, and all fall back to TCP; where TCP gets no answer
either, to the process group's own collectives. A wrong secret or a rank claimed by two processes is an error and never
a reason to fall back: otherwise an attacker could force the job onto a connection without keys.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Protocol

import torch.distributed as dist

from gradwire.clock import Clock
from gradwire.errors import NoAnswerError
from gradwire.events import Faulted, Sink
from gradwire.transport.bootstrap.rendezvous import rendezvous
from gradwire.transport.bootstrap.secret import job_secret
from gradwire.transport.bootstrap.store_exchange import StoreExchange
from gradwire.transport.config import TransportConfig
from gradwire.transport.lanes.base import Lane
from gradwire.transport.lanes.open_lanes import open_lanes
from gradwire.transport.lanes.unfinished_sends import UnfinishedSends
from gradwire.transport.lanes.wire import WireLane
from gradwire.transport.traffic import Source
from gradwire.transport.wires.ltp import Endpoint, LtpConfig
from gradwire.transport.wires.native import NativeWire
from gradwire.transport.wires.tcp import TcpConfig, TcpEndpoint
from gradwire.types import LinkView

# Called with the wire that failed, the one used instead, and the error.
Fallback = Callable[[str, str, NoAnswerError], None]


class Carrier(Protocol):
    """Opens lanes; all ranks open the same numbers in the same order."""

    @property
    def tolerance(self) -> float:
        """The share of a frame's values that its receiver waits for until the deadline."""
        ...

    @property
    def kernel_tcp(self) -> bool:
        """Whether the kernel's TCP may carry the lanes: its acknowledgements are read from the sockets."""
        ...

    def open(self, count: int) -> list[Lane]:
        """Lanes for tensors of host memory, whatever device the gradients are on."""
        ...

    def links(self) -> dict[int, LinkView]:
        """Estimates of the links to other ranks, from acknowledgements; empty where lanes have none."""
        ...

    def source(self) -> Source | None:
        """Counters of this carrier's traffic; None where only the operations' timings are known."""
        ...

    def moved(self) -> dict[int, tuple[float, float]]:
        """Per link: bytes acknowledged while data was in flight, and the seconds that took; empty as above."""
        ...

    def close(self) -> None:
        """Call after the last lane was closed."""
        ...


class GroupCarrier:
    """Lanes over new process groups with the members of the model's one."""

    tolerance = 1.0
    kernel_tcp = True

    def __init__(self, group: dist.ProcessGroup, timeout: float, clock: Clock) -> None:
        self._group, self._timeout, self._clock = group, timeout, clock

    def open(self, count: int) -> list[Lane]:
        return open_lanes(self._group, count, self._timeout, self._clock)

    def links(self) -> dict[int, LinkView]:
        return {}

    def source(self) -> Source | None:
        return None

    def moved(self) -> dict[int, tuple[float, float]]:
        return {}

    def close(self) -> None:
        """Lanes release their own groups."""


class WireCarrier:
    """Lanes over one endpoint of this process."""

    def __init__(self, endpoint: NativeWire, world_size: int, config: TransportConfig, clock: Clock) -> None:
        self._endpoint = endpoint
        self._world_size = world_size
        self._clock = clock
        self._sends = UnfinishedSends(config.timeout)
        self._opened = 0
        self.tolerance = config.tolerance
        self.kernel_tcp = isinstance(endpoint, TcpEndpoint)

    def open(self, count: int) -> list[Lane]:
        numbers = range(self._opened, self._opened + count)
        self._opened += count
        return [WireLane(self._endpoint, self._world_size, n, self._sends, self._clock) for n in numbers]

    def links(self) -> dict[int, LinkView]:
        return self._endpoint.views()

    def alive(self) -> bool:
        """Whether every peer is connected."""
        others = (rank for rank in range(self._world_size) if rank != self._endpoint.rank)
        return all(self._endpoint.connection_state(rank) == "connected" for rank in others)

    def source(self) -> Source:
        return Source(self._endpoint.ledger, self._endpoint.stats)

    def moved(self) -> dict[int, tuple[float, float]]:
        links = self._endpoint.stats().items()
        return {peer: (link["moved"], link["moving"]) for peer, link in links if link["moved"]}

    def close(self) -> None:
        self._endpoint.close()


def open_carrier(config: TransportConfig, group: dist.ProcessGroup, clock: Clock, needed: bool, sink: Sink) -> Carrier:
    """Every member of the group calls this at the same point. `needed`: whether any lane will be opened."""
    if config.kind in ("auto", "group") or not needed:
        return GroupCarrier(group, config.timeout, clock)
    report = fallback_reporter(group, clock, sink)
    try:
        return WireCarrier(open_wire(config, group, report), group.size(), config, clock)
    except NoAnswerError as error:
        report("gradwire's TCP", dist.get_backend(group), error)
    return GroupCarrier(group, config.timeout, clock)


def fallback_reporter(group: dist.ProcessGroup, clock: Clock, sink: Sink) -> Fallback:
    """Reports on rank 0 that another wire is used instead: a warning for the user, an event for the record."""

    def report(wire: str, instead: str, error: NoAnswerError) -> None:
        if group.rank() == 0:
            text = f"{wire} is not possible here, so gradients go over {instead} instead. {error}"
            warnings.warn(f"gradwire: {text}", stacklevel=4)
            sink.emit(Faulted(clock.now(), 0, "fallback", text))

    return report


def open_wire(config: TransportConfig, group: dist.ProcessGroup, report: Fallback) -> NativeWire:
    """LTP, unless TCP is configured or LTP gets no answer; NoAnswerError on every rank when TCP gets none either."""
    if config.kind != "tcp":
        try:
            return connect_ltp(config, group)
        except NoAnswerError as error:
            report("LTP over UDP", "TCP", error)
    return connect_tcp(config, group)


def connect_ltp(config: TransportConfig, group: dist.ProcessGroup, exchange: StoreExchange | None = None) -> Endpoint:
    """An LTP endpoint connected to every other rank of the group; addresses go through torch's store."""
    exchange = exchange or StoreExchange.for_group(group, "ltp", config.timeout)
    return rendezvous(exchange, ltp_opener(config, group.rank(), job_secret(exchange)))


def connect_tcp(
    config: TransportConfig, group: dist.ProcessGroup, exchange: StoreExchange | None = None
) -> TcpEndpoint:
    """As `connect_ltp`, over kernel TCP: for networks that block UDP."""
    exchange = exchange or StoreExchange.for_group(group, "tcp", config.timeout)
    return rendezvous(exchange, tcp_opener(config, group.rank(), job_secret(exchange)))


def ltp_opener(config: TransportConfig, rank: int, secret: bytes) -> Callable[[str, int], Endpoint]:
    """Opens an endpoint on an address and port."""

    def listen(host: str, port: int) -> Endpoint:
        settings = LtpConfig(host, port, config.encrypt, dead_after=config.dead_after, connect_timeout=config.connect)
        return Endpoint(rank, secret, settings)

    return listen


def tcp_opener(config: TransportConfig, rank: int, secret: bytes) -> Callable[[str, int], TcpEndpoint]:
    """Opens an endpoint on an address and port."""

    def listen(host: str, port: int) -> TcpEndpoint:
        settings = TcpConfig(host, port, config.encrypt, dead_after=config.dead_after, connect_timeout=config.connect)
        return TcpEndpoint(rank, secret, settings)

    return listen
