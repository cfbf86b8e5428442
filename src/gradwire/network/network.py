"""Network: hosts, routers, directed links, changes over time, cross traffic. Checked at construction.

Builders: `star` (a switch with one access link per host), `matrix` (a link for every ordered pair), or give the links.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gradwire.errors import ConfigError
from gradwire.network.link_spec import ETHERNET_OVERHEAD, ZERO_SECONDS, Burst, LinkSpec
from gradwire.network.nat import Nat
from gradwire.units import Bytes, Rate, Seconds

# The least that every IPv6 link carries (RFC 8200).
LEAST_MTU6 = 1280
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.]{0,30}$")
SWITCH = "switch"
Protocol = Literal["tcp", "udp"]
# Fields of LinkSpec that a change may set, besides the rate.
CHANGEABLE = ("delay", "jitter", "loss", "burst", "queue", "reorder", "reorder_by", "duplicate")


@dataclass(frozen=True, slots=True)
class Host:
    """A machine. Hosts with `rank` run the training script; the others only send cross traffic.

    With `nat` it is behind a router that translates its address.
    """

    name: str
    rank: bool = True
    congestion: str | None = None
    forwards: bool = False
    nat: Nat | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a link."""

    source: str
    target: str
    spec: LinkSpec

    @property
    def name(self) -> str:
        return f"{self.source}->{self.target}"


@dataclass(frozen=True, slots=True)
class Change:
    """From `at` seconds on, the matching links get these values; None leaves a value unchanged.

    `link` is "a->b" (one direction), "a-b" (both), "a->*", "*->a", or "*" (all).
    """

    at: Seconds
    link: str
    rate: Rate | None = None
    delay: Seconds | None = None
    jitter: Seconds | None = None
    loss: float | None = None
    burst: Burst | None = None
    queue: Bytes | None = None
    reorder: float | None = None
    reorder_by: Seconds | None = None
    duplicate: float | None = None

    def __post_init__(self) -> None:
        if self.at < 0:
            raise ConfigError(f"change.at: must not be negative, but it is {float(self.at):g} s")
        self.applied(LinkSpec())

    def applied(self, spec: LinkSpec) -> LinkSpec:
        """The spec after this change; ConfigError if its values are not valid."""
        if self.rate is not None:
            spec = replace(spec, rate=self.rate, trace=None)
        for name in CHANGEABLE:
            if (value := getattr(self, name)) is not None:
                spec = replace(spec, **{name: value})
        return spec

    def matches(self, link: Link) -> bool:
        if self.link == "*":
            return True
        if "->" in self.link:
            source, _, target = self.link.partition("->")
            return source in ("*", link.source) and target in ("*", link.target)
        return set(self.link.split("-")) == {link.source, link.target}


@dataclass(frozen=True, slots=True)
class CrossTraffic:
    """iperf3 flows from source to target between `start` and `stop` (None: until the run ends)."""

    source: str
    target: str
    start: Seconds = ZERO_SECONDS
    stop: Seconds | None = None
    flows: int = 1
    congestion: str | None = None
    protocol: Protocol = "tcp"
    rate: Rate | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.flows <= 128:
            raise ConfigError(f"cross.flows: must be in 1..128 (iperf3's limit), but it is {self.flows}")
        start = float(self.start)
        if start < 0:
            raise ConfigError(f"cross.start: must not be negative, but it is {start:g} s")
        if self.stop is not None and self.stop <= self.start:
            raise ConfigError(f"cross.stop: must be after cross.start ({start:g} s), but it is {float(self.stop):g} s")
        if self.protocol == "udp" and self.rate is None:
            raise ConfigError("cross.rate: is required for UDP; give the rate of each flow, for example '20mbit'")


@dataclass(frozen=True, slots=True)
class Network:
    """The whole network; `congestion` is TCP's default on its hosts, `seed` fixes all random draws of its links.

    `dilate` is the factor by which the lab stretches time when it runs the network; all values here are undilated.
    With `ipv6`, hosts of the lab have IPv6 addresses and no IPv4 address: most software prefers IPv4 where it has both.
    """

    name: str
    hosts: tuple[Host, ...]
    links: tuple[Link, ...]
    routers: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    cross: tuple[CrossTraffic, ...] = ()
    congestion: str = "cubic"
    overhead: int = ETHERNET_OVERHEAD
    seed: int = 1
    about: str = ""
    dilate: float = 1.0
    ipv6: bool = False

    def __post_init__(self) -> None:
        self._check_names()
        self._check_links()
        self._check_traffic()

    def _check_names(self) -> None:
        names = [host.name for host in self.hosts] + list(self.routers)
        for name in names:
            if not _NAME.match(name):
                raise ConfigError(f"host or router name {name!r}: use letters, digits, _ and . (at most 31)")
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(f"name {twice[0]!r} is used for more than one host or router; give each its own name")
        if len(self.ranks) < 1:
            raise ConfigError("hosts: a network needs at least one host that runs a rank")
        if self.ipv6 and (behind := next((host.name for host in self.hosts if host.nat), None)):
            raise ConfigError(f"host {behind}: nat translates IPv4 only; leave out nat or ipv6")
        if not 0 <= self.overhead <= 200:
            raise ConfigError(f"overhead: must be 0..200 bytes per packet, but it is {self.overhead}; Ethernet has 38")
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"seed: must be in 0..2^32-1, but it is {self.seed}")

    def _check_links(self) -> None:
        nodes = {host.name for host in self.hosts} | set(self.routers)
        seen: set[str] = set()
        for link in self.links:
            for end in (link.source, link.target):
                if end not in nodes:
                    raise ConfigError(f"link {link.name}: there is no host or router {end!r}; add it or correct it")
            if link.source == link.target:
                raise ConfigError(f"link {link.name}: both ends are the same node")
            if link.name in seen:
                raise ConfigError(f"link {link.name}: given twice; remove one of them")
            seen.add(link.name)
            if self.ipv6 and link.spec.mtu < LEAST_MTU6:
                raise ConfigError(
                    f"link {link.name}: mtu {link.spec.mtu} is too small for ipv6; use {LEAST_MTU6} or more, or IPv4"
                )

    def _check_traffic(self) -> None:
        nodes = {host.name for host in self.hosts}
        for change in self.changes:
            if not any(change.matches(link) for link in self.links):
                raise ConfigError(f"change.link: {change.link!r} matches no link; the links are {self._some_links()}")
        for flow in self.cross:
            for name, end in (("from", flow.source), ("to", flow.target)):
                if end not in nodes:
                    known = ", ".join(sorted(nodes)[:8])
                    raise ConfigError(f"cross.{name}: there is no host {end!r}; the hosts are {known}")
            if flow.source == flow.target:
                raise ConfigError(f"cross.to: must differ from cross.from ({flow.source!r})")

    def _some_links(self) -> str:
        names = [link.name for link in self.links]
        return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")

    @property
    def ranks(self) -> tuple[Host, ...]:
        return tuple(host for host in self.hosts if host.rank)

    def congestion_of(self, host: Host) -> str:
        return host.congestion or self.congestion

    def mtu_of(self, host: str) -> int:
        """The MTU of a host's interface: that of the link it sends into."""
        return min((link.spec.mtu for link in self.links if link.source == host), default=1500)


def both(a: str, b: str, spec: LinkSpec, back: LinkSpec | None = None) -> tuple[Link, Link]:
    """Both directions: `spec` from a to b, `back` (default: `spec`) from b to a."""
    return Link(a, b, spec), Link(b, a, back or spec)


def host_names(count: int) -> tuple[str, ...]:
    if not 1 <= count <= 1000:
        raise ConfigError(f"hosts: must be in 1..1000, but it is {count}")
    return tuple(f"h{index}" for index in range(count))


def star(
    hosts: Sequence[Host], access: Callable[[Host], tuple[LinkSpec, LinkSpec]] | LinkSpec, center: str = SWITCH
) -> tuple[Link, ...]:
    """Access links, up and down, between each host and one switch."""
    links: list[Link] = []
    for host in hosts:
        up, down = (access, access) if isinstance(access, LinkSpec) else access(host)
        links += both(host.name, center, up, down)
    return tuple(links)


def matrix(names: Sequence[str], spec: Callable[[int, int], LinkSpec]) -> tuple[Link, ...]:
    """A separate link for every ordered pair of hosts."""
    count = range(len(names))
    return tuple(Link(names[i], names[j], spec(i, j)) for i in count for j in count if i != j)


def as_hosts(names: Iterable[str], forwards: bool = False) -> tuple[Host, ...]:
    return tuple(Host(name, forwards=forwards) for name in names)
