"""Nat: the address translation in front of a host. Pure.

    nat = { kind = "symmetric", timeout = "30s", forward = [29500, "29600-29609"] }

A host behind one has a private address; the others see its public one, and reach it there as the kind allows. Ports
that are forwarded reach the host at any time, under the same number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from gradwire.errors import ConfigError
from gradwire.units import Seconds

# full-cone: one public port for all peers, to which everybody may send; port-restricted: the same, but only peers that
# the host has sent to may send to it; symmetric: a random port for each peer, and only that peer may send to it.
NatKind = Literal["full-cone", "port-restricted", "symmetric"]
NAT_KINDS: Final[tuple[NatKind, ...]] = get_args(NatKind)
# What most home routers forget an unused mapping of UDP after; RFC 4787 asks for two minutes.
TIMEOUT: Final = Seconds(30)
_MOST_PORTS: Final = 1000


@dataclass(frozen=True, slots=True)
class Nat:
    """A mapping of UDP is forgotten after `timeout` without a packet; those of TCP are kept for two hours."""

    kind: NatKind = "port-restricted"
    timeout: Seconds = TIMEOUT
    forward: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in NAT_KINDS:
            raise ConfigError(f"nat.kind: {self.kind!r} is not one of {', '.join(NAT_KINDS)}")
        if self.timeout <= 0:
            raise ConfigError(f"nat.timeout: must be positive, but it is {float(self.timeout):g} s; write '30s'")
        for port in self.forward:
            if not 1 <= port <= 65535:
                raise ConfigError(f"nat.forward: {port} is not a port; write numbers from 1 to 65535")
        if len(self.forward) > _MOST_PORTS:
            raise ConfigError(f"nat.forward: {len(self.forward)} ports are too many; forward {_MOST_PORTS} at most")


def parse_ports(value: Any) -> tuple[int, ...]:
    """A list of ports and ranges, [29500, "29600-29609"]; a ConfigError for anything else."""
    if not isinstance(value, list):
        raise ConfigError(f"nat.forward: must be a list of ports, but it is {value!r}; write [29500, '29600-29609']")
    return tuple(port for entry in value for port in _ports(entry))


def _ports(entry: Any) -> range:
    low, dash, high = entry.partition("-") if isinstance(entry, str) else ("", "", "")
    if type(entry) is int:
        return range(entry, entry + 1)
    if dash and low.isdecimal() and high.isdecimal() and int(low) <= int(high) < 1 << 16:
        return range(int(low), int(high) + 1)
    raise ConfigError(f"nat.forward: {entry!r} is neither a port nor a range of ports; write 29500 or '29600-29609'")
