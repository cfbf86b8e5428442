"""Rendezvous: connects the ranks of a group by a wire, or raises the same error on all of them.

    1. open an endpoint on this host's address, at a port of the allowed range
    2. publish address and port through torch's store, read those of the others; GRADWIRE_ADVERTISE names the address
       where it is not this host's own
    3. connect to every peer
    4. publish whether that worked, read whether it did for the others

Because of step 4 the group succeeds or fails as a whole: when one pair cannot connect, every rank raises LinkError, so
that all of them can fall back to another wire together. Works with any wire that has the methods of `Connecting`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeVar, runtime_checkable

import msgspec

from gradwire.errors import ConfigError, LinkError, NoAnswerError
from gradwire.transport.bootstrap.address import ADVERTISE, is_private, own_address, port_range, published_address
from gradwire.transport.bootstrap.store_exchange import StoreExchange


class Connecting(Protocol):
    """An endpoint that listens and can connect to peers."""

    @property
    def port(self) -> int: ...

    def connect(self, peers: Mapping[int, tuple[str, int]], timeout: float | None = None) -> None:
        """Connect to every peer (rank -> address, port); LinkError names the one that failed, and why."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class SharesHost(Protocol):
    """A wire with a faster path to peers on its own host."""

    def local_address(self) -> tuple[str, int]:
        """The identity of this host, and the number by which processes on it reach this one."""
        ...

    def set_local_addresses(self, others: Mapping[int, tuple[str, int]]) -> None:
        """The `local_address` of every other rank; called before `connect`."""
        ...


# Ranks that an error lists by number.
_NAMED: Final = 4
W = TypeVar("W", bound=Connecting)
# Address and port to listen on (port 0: any) -> endpoint; ConfigError when it cannot listen there.
Open = Callable[[str, int], W]


class RankAddress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a rank listens; `error` says why it does not. `host` and `near`: `SharesHost.local_address`."""

    address: str = ""
    port: int = 0
    host: str = ""
    near: int = 0
    error: str = ""


class Outcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The result of connecting on one rank: no error, or what failed and whether it only got no answer."""

    error: str = ""
    silent: bool = False


def rendezvous(exchange: StoreExchange, make: Open[W], environment: Mapping[str, str] | None = None) -> W:
    """A wire connected to every other rank. Every rank calls this; LinkError on all of them, or on none."""
    wire, own = listen(make, environment)  # 1
    try:
        addresses = exchange.gather("address", own, RankAddress)  # 2
        for rank, other in enumerate(addresses):
            check_address(rank, other)
        assert wire is not None
        outcome = _connect(wire, exchange, addresses)  # 3
        _raise_failure(outcome, exchange.gather("connection", outcome, Outcome))  # 4
    except BaseException:
        if wire is not None:
            wire.close()
        raise
    return wire


def listen(make: Open[W], environment: Mapping[str, str] | None) -> tuple[W | None, RankAddress]:
    """The first free port of the range. A failure is published too: otherwise the others would wait for this rank."""
    error = ""
    try:
        host, ports = own_address(environment), port_range(environment)
        published = published_address(environment)
    except ConfigError as mistake:
        return None, RankAddress(error=str(mistake))
    for port in ports:
        try:
            wire = make(host, port)
        except ConfigError as mistake:
            error = str(mistake)
        else:
            near = wire.local_address() if isinstance(wire, SharesHost) else ()
            return wire, RankAddress(published, wire.port, *near)
    if len(ports) > 1:
        error = f"GRADWIRE_PORTS: none of the {len(ports)} ports is free on {host}; the last error: {error}"
    return None, RankAddress(error=error)


def check_address(rank: int, at: RankAddress) -> None:
    """Refuse what is no address or no port: anybody could have written it to the store."""
    if at.error:
        raise ConfigError(f"rank {rank} cannot listen: {at.error}")
    family = socket.AF_INET6 if ":" in at.address else socket.AF_INET
    try:
        socket.inet_pton(family, at.address)
    except (OSError, ValueError) as error:
        raise LinkError(
            f"rank {rank} published {at.address!r}, which is no address; do all ranks run the same gradwire version?"
        ) from error
    if not 1 <= at.port <= 65535 or not 0 <= at.near <= 65535:
        raise LinkError(
            f"rank {rank} published port {at.port}, which is no port; do all ranks run the same gradwire version?"
        )


def _raise_failure(own: Outcome, outcomes: list[Outcome]) -> None:
    """Raise if any rank failed: the own failure first. NoAnswerError only where every failure is a missing answer."""
    failed = [one for one in outcomes if one.error]
    if failed:
        kind = NoAnswerError if all(one.silent for one in failed) else LinkError
        definite = [one for one in (own, *failed) if one.error and not one.silent]
        raise kind((definite or [own if own.error else failed[0]])[0].error)


def _connect(wire: Connecting, exchange: StoreExchange, addresses: list[RankAddress]) -> Outcome:
    """Connect to all others."""
    own = addresses[exchange.rank]
    others = {rank: at for rank, at in enumerate(addresses) if rank != exchange.rank}
    if isinstance(wire, SharesHost):
        wire.set_local_addresses({rank: (at.host, at.near) for rank, at in others.items()})
    try:
        wire.connect({rank: (at.address, at.port) for rank, at in others.items()})
    except LinkError as error:
        where = f"rank {exchange.rank} at {own.address} port {own.port}"
        text = f"{where} cannot reach a peer: {error}. {_advice(own, addresses)}"
        return Outcome(text, isinstance(error, NoAnswerError))
    return Outcome()


def _advice(own: RankAddress, addresses: list[RankAddress]) -> str:
    if len({":" in at.address for at in addresses}) > 1:
        return "Some ranks have IPv4 and some IPv6 addresses; name one interface for all with GRADWIRE_IFNAME"
    loop = [at.address for at in addresses if at.address.startswith("127.") or at.address == "::1"]
    if loop and len(loop) < len(addresses):
        return f"A rank listens on {loop[0]}, which other hosts cannot reach; name its interface with GRADWIRE_IFNAME"
    return (
        f"If {own.address} is the wrong network, name the interface with GRADWIRE_IFNAME; if a firewall is "
        f"in between, open a range of ports and name it with GRADWIRE_PORTS=lo-hi{_nat_advice(own, addresses)}"
    )


def _nat_advice(own: RankAddress, addresses: list[RankAddress]) -> str:
    """For ranks with a private address, which others reach only inside of its network."""
    private = [(rank, at) for rank, at in enumerate(addresses) if at != own and is_private(at.address)]
    if not private:
        return ""
    behind = ", ".join(f"{rank} ({at.address})" for rank, at in private[:_NAMED])
    more = ", ..." if len(private) > _NAMED else ""
    return (
        f"; if rank {behind}{more} is behind a NAT, forward that range of TCP and UDP ports to it and name its public "
        f"address there with {ADVERTISE}"
    )
