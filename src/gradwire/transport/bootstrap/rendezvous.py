"""Rendezvous: the ranks of a group find each other and come out with a connected wire, or all with the same error.

    1. open an endpoint on this host's address, at a port of the allowed range
    2. tell the others host and port through torch's store, hear theirs
    3. connect to every peer
    4. tell how that went, hear how it went for the others

Step 4 makes success and failure the group's: when one pair cannot talk, every rank raises LinkError, so that all of
them may fall back to another wire together. It works for any kind of wire: what it needs is the `Connecting` below.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar, runtime_checkable

import msgspec

from gradwire.errors import ConfigError, LinkError, NoAnswerError
from gradwire.transport.bootstrap.address import own_address, port_range
from gradwire.transport.bootstrap.store_exchange import StoreExchange


class Connecting(Protocol):
    """An endpoint that listens and can be told its peers."""

    @property
    def port(self) -> int: ...

    def connect(self, peers: Mapping[int, tuple[str, int]], timeout: float | None = None) -> None:
        """Connect to every peer (rank -> address, port); LinkError names the one that failed, and why."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class SharesHost(Protocol):
    """A wire with a shorter way to peers on its own host."""

    def nearby(self) -> tuple[str, int]:
        """The identity of this host, and the number under which neighbours reach us."""
        ...

    def meet(self, others: Mapping[int, tuple[str, int]]) -> None:
        """What `nearby` says on every other rank; told before `connect`."""
        ...


W = TypeVar("W", bound=Connecting)
# Address and port to listen on (port 0: any) -> endpoint; ConfigError when it cannot listen there.
Open = Callable[[str, int], W]


class RankAddress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a rank listens; `error` says why it does not. `host` and `near` are what a Neighbourly wire adds."""

    address: str = ""
    port: int = 0
    host: str = ""
    near: int = 0
    error: str = ""


class Outcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How connecting went for one rank: nothing to say, or what failed and whether that was mere silence."""

    error: str = ""
    silent: bool = False


def rendezvous(exchange: StoreExchange, make: Open[W], environment: Mapping[str, str] | None = None) -> W:
    """A wire connected to every other rank. Every rank calls this; LinkError on all of them, or on none."""
    wire, place = listen(make, environment)  # 1
    try:
        places = exchange.gather("address", place, RankAddress)  # 2
        for rank, other in enumerate(places):
            check_place(rank, other)
        assert wire is not None
        outcome = _connect(wire, exchange, places)  # 3
        _judge(outcome, exchange.gather("connection", outcome, Outcome))  # 4
    except BaseException:
        if wire is not None:
            wire.close()
        raise
    return wire


def listen(make: Open[W], environment: Mapping[str, str] | None) -> tuple[W | None, RankAddress]:
    """The first free port of the range. A failure is told to the others as well: they would wait for us otherwise."""
    error = ""
    try:
        host, ports = own_address(environment), port_range(environment)
    except ConfigError as mistake:
        return None, RankAddress(error=str(mistake))
    for port in ports:
        try:
            wire = make(host, port)
        except ConfigError as mistake:
            error = str(mistake)
        else:
            return wire, RankAddress(host, wire.port, *(wire.nearby() if isinstance(wire, SharesHost) else ()))
    if len(ports) > 1:
        error = f"GRADWIRE_PORTS: none of the {len(ports)} ports is free on {host}; the last said: {error}"
    return None, RankAddress(error=error)


def check_place(rank: int, place: RankAddress) -> None:
    """A note from the store is whatever somebody wrote there: an address must be one, a port must be one."""
    if place.error:
        raise ConfigError(f"rank {rank} cannot listen: {place.error}")
    family = socket.AF_INET6 if ":" in place.address else socket.AF_INET
    try:
        socket.inet_pton(family, place.address)
    except (OSError, ValueError) as error:
        raise LinkError(
            f"rank {rank} told {place.address!r}, which is no address; another gradwire version?"
        ) from error
    if not 1 <= place.port <= 65535 or not 0 <= place.near <= 65535:
        raise LinkError(f"rank {rank} told port {place.port}, which is no port; another gradwire version?")


def _judge(own: Outcome, outcomes: list[Outcome]) -> None:
    """Raise if anybody failed: the own failure first. Silence everywhere is NoAnswerError, anything else is worse."""
    failed = [one for one in outcomes if one.error]
    if failed:
        kind = NoAnswerError if all(one.silent for one in failed) else LinkError
        loud = [one for one in (own, *failed) if one.error and not one.silent]
        raise kind((loud or [own if own.error else failed[0]])[0].error)


def _connect(wire: Connecting, exchange: StoreExchange, places: list[RankAddress]) -> Outcome:
    """Connect to all others."""
    own = places[exchange.rank]
    peers = {rank: (place.address, place.port) for rank, place in enumerate(places) if rank != exchange.rank}
    if isinstance(wire, SharesHost):
        wire.meet({rank: (place.host, place.near) for rank, place in enumerate(places) if rank != exchange.rank})
    try:
        wire.connect(peers)
    except LinkError as error:
        where = f"rank {exchange.rank} at {own.address} port {own.port}"
        text = f"{where} cannot reach a peer: {error}. {_advice(own, places)}"
        return Outcome(text, isinstance(error, NoAnswerError))
    return Outcome()


def _advice(own: RankAddress, places: list[RankAddress]) -> str:
    if len({":" in place.address for place in places}) > 1:
        return "Some ranks told IPv4 and some IPv6 addresses; name one interface for all with GRADWIRE_IFNAME"
    loop = [place.address for place in places if place.address.startswith("127.") or place.address == "::1"]
    if loop and len(loop) < len(places):
        return f"A rank told {loop[0]}, which only its own host can reach; name its interface with GRADWIRE_IFNAME"
    return (
        f"If {own.address} is the wrong network, name the interface with GRADWIRE_IFNAME; if a firewall stands "
        "between, open a range of ports and name it with GRADWIRE_PORTS=lo-hi"
    )
