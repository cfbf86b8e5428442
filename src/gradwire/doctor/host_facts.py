"""Host facts: this host's interfaces, route to rank 0, gloo's address and versions. Sends nothing."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from importlib.metadata import version
from pathlib import Path

from gradwire.doctor.types import HostFacts, Interface
from gradwire.errors import LinkError
from gradwire.observe.event_bus import host_name
from gradwire.sites.topology import VARIABLE as SITE

SIOCGIFADDR, SIOCGIFMTU = 0x8915, 0x8921
LOOPBACK = "127.0.0.1"


def interfaces() -> list[Interface]:
    """The interfaces with an IPv4 address."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                address = socket.inet_ntoa(fcntl.ioctl(probe, SIOCGIFADDR, request)[20:24])
                mtu = struct.unpack_from("=i", fcntl.ioctl(probe, SIOCGIFMTU, request), 16)[0]
            except OSError:
                continue  # no IPv4 address
            found.append(Interface(name, address, mtu))
    return found


def route_address(master: str) -> str:
    """The local address from which packets to `master` leave. Connecting a UDP socket sends nothing."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((master, 9))
            return str(probe.getsockname()[0])
    except OSError as error:
        raise LinkError(f"doctor: no route to MASTER_ADDR={master} ({error}); check the address and routes") from error


def gloo_address(setting: str, known: list[Interface]) -> str | None:
    """The address that torch's gloo publishes: the interface's, else the host name's, else loopback.

    None if the interface does not exist; gloo then fails.
    """
    if setting:
        first = setting.split(",", maxsplit=1)[0].strip()
        return next((one.address for one in known if one.name == first), None)
    try:
        resolved = socket.gethostbyname(socket.gethostname())
    except OSError:
        return LOOPBACK
    usable = resolved.startswith("127.") or any(one.address == resolved for one in known)
    return resolved if usable else LOOPBACK


def congestion_control() -> str:
    path = Path("/proc/sys/net/ipv4/tcp_congestion_control")
    return path.read_text().strip() if path.is_file() else "unknown"


def slow_start_after_idle() -> bool:
    """Whether TCP begins with a small window again after a pause. The setting belongs to the network namespace."""
    path = Path("/proc/sys/net/ipv4/tcp_slow_start_after_idle")
    return path.is_file() and path.read_text().strip() != "0"


def host_facts(rank: int, master: str, tcp_port: int, udp_port: int, reflector_ports: list[int]) -> HostFacts:
    known = interfaces()
    setting = os.environ.get("GLOO_SOCKET_IFNAME", "")
    return HostFacts(
        rank=rank,
        host=host_name(),
        route_address=route_address(master),
        gloo_setting=setting,
        gloo_address=gloo_address(setting, known),
        interfaces=known,
        torch=version("torch"),
        gradwire=version("gradwire"),
        congestion=congestion_control(),
        tcp_port=tcp_port,
        udp_port=udp_port,
        restarts=slow_start_after_idle(),
        site=os.environ.get(SITE, ""),
        reflector_ports=reflector_ports,
    )
