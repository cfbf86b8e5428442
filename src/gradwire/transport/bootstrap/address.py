"""Address: chooses the address and port of this host that the other ranks connect to.

    1. the interface that GRADWIRE_IFNAME names, else GLOO_SOCKET_IFNAME (a list takes its first that exists)
    2. the address from which MASTER_ADDR is reached
    3. the address of the default route, else loopback

Where the others reach it at another address, behind a NAT, GRADWIRE_ADVERTISE names that one. Nothing is sent: a
connected UDP socket only looks at the routing table.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gradwire.errors import ConfigError

LOOPBACK: Final = "127.0.0.1"
# Addresses reserved for documentation: no host has them, any default route leads to them.
_FAR: Final = ("192.0.2.1", "2001:db8::1")
_PRIVATE: Final = tuple(map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")))
_SIOCGIFADDR: Final = 0x8915
_DISCARD: Final = 9
ADVERTISE: Final = "GRADWIRE_ADVERTISE"


def published_address(environment: Mapping[str, str] | None = None) -> str:
    """The address at which the other ranks reach this host: GRADWIRE_ADVERTISE (an address or a name), else its own."""
    given = (os.environ if environment is None else environment).get(ADVERTISE, "")
    own = own_address(environment)
    if not given:
        return own
    family = socket.AF_INET6 if ":" in own else socket.AF_INET
    try:
        found = socket.getaddrinfo(given, None, family, socket.SOCK_DGRAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{ADVERTISE}: {given!r} is neither an address like {own}, on which this rank listens, nor a name that has "
            f"one ({error}); write the public address of this host's router, without a port: the ports of "
            "GRADWIRE_PORTS are forwarded under the same numbers"
        ) from error
    return str(found[0][4][0])


def own_address(environment: Mapping[str, str] | None = None) -> str:
    """The address to listen on."""
    environment = os.environ if environment is None else environment
    for variable in ("GRADWIRE_IFNAME", "GLOO_SOCKET_IFNAME"):
        if names := environment.get(variable):
            return _of_interfaces(variable, names)
    master = environment.get("MASTER_ADDR")
    found = route_to(master) if master else None
    if found is not None and not (_is_loopback(found) and _several_hosts(environment)):
        return found
    # Where MASTER_ADDR resolves to a loopback address, other hosts cannot reach this one by it.
    return next(filter(None, map(route_to, _FAR)), found or LOOPBACK)


def port_range(environment: Mapping[str, str] | None = None) -> range:
    """GRADWIRE_PORTS=lo-hi, both included; without it the system chooses (port 0)."""
    text = (os.environ if environment is None else environment).get("GRADWIRE_PORTS", "")
    if not text:
        return range(1)
    low, dash, high = text.partition("-")
    try:
        first, last = int(low), int(high if dash else low)
    except ValueError:
        first, last = 0, 0
    if not 1 <= first <= last <= 65535:
        raise ConfigError(f"GRADWIRE_PORTS: {text!r} is not a range of ports; write lo-hi, for example 29600-29700")
    return range(first, last + 1)


def route_to(host: str) -> str | None:
    """The local address from which packets to `host` leave; None when it has no address or no route."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, _DISCARD, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(where)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _of_interfaces(variable: str, names: str) -> str:
    for name in (part.strip() for part in names.split(",")):
        if found := interface_address(name):
            return found
    present = ", ".join(name for _, name in socket.if_nameindex())
    raise ConfigError(f"{variable}={names}: no such interface with an address; this host has {present}")


def interface_address(name: str) -> str | None:
    """The interface's IPv4 address, else a global IPv6 one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            return socket.inet_ntoa(answer[20:24])
        except OSError:
            return _interface_address6(name)


def _interface_address6(name: str) -> str | None:
    table = Path("/proc/net/if_inet6")
    for line in table.read_text().splitlines() if table.is_file() else []:
        digits, _, _, scope, _, interface = line.split()
        if interface == name and scope in ("00", "10"):  # global, or the loopback host
            return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
    return None


def is_private(address: str) -> bool:
    """Whether an address is one of a private network, behind a NAT if at all connected to others (RFC 1918, 6598)."""
    parsed = ipaddress.ip_address(address)
    return parsed.version == 4 and any(parsed in network for network in _PRIVATE)


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _several_hosts(environment: Mapping[str, str]) -> bool:
    local, world = environment.get("LOCAL_WORLD_SIZE"), environment.get("WORLD_SIZE")
    return local is not None and world is not None and local != world
