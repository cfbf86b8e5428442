"""Loopback: the lab without namespaces. All ranks run on 127.0.0.1; each TCP socket is paced to its host's rate.

It demonstrates a slow network, but has no delay, loss, queue or schedule, and two sockets of one host do not share its
rate. Its verdict says so; it must not be used for measurements.
"""

from __future__ import annotations

import math
from pathlib import Path

from gradwire.errors import ConfigError
from gradwire.lab.program import installed_program
from gradwire.lab.stats import EmulatorStats, LinkStats
from gradwire.network import Change, Network, routes

PACER = "libgradwire-pace.so"
LOOPBACK_LIMITS = (
    "loopback mode: only TCP's sending rate is limited; no delay, loss, queue or schedule; not for measurements"
)
EPHEMERAL_FROM, EPHEMERAL_TO = 29500, 29999


class LoopbackLab:
    """Replaces the Emulator; emulates nothing."""

    mode = "loopback"
    interface = "lo"
    unprivileged = False

    def __init__(self, network: Network) -> None:
        for setting, used in (("ipv6", network.ipv6), ("nat", any(host.nat for host in network.hosts))):
            if used:
                raise ConfigError(f"{setting}: loopback mode has none; run as root for a real network, or leave it out")
        self.network = network
        self.hosts_file: Path | None = None
        self.pid = 0
        self._program = installed_program()
        self._routes = routes(network)

    def address(self, index: int) -> str:
        return "127.0.0.1"

    def own_address(self, index: int) -> str:
        return self.address(index)

    def forget_mappings(self, index: int) -> None:
        raise ConfigError("nat: loopback mode has none; run as root for a real network")

    def env(self, index: int) -> dict[str, str]:
        """The pacer's variables: the rate of the slowest route from this host."""
        name = self.network.hosts[index].name
        rates = [
            float(self.network.links[link].spec.mean_rate)
            for (source, _), path in self._routes.items()
            if source == name
            for link in path
        ]
        slowest = min(rates, default=math.inf)
        if math.isinf(slowest):
            return {}
        # Link rates include headers: a full packet of 1538 bytes has 1448 bytes of data.
        return {
            "LD_PRELOAD": str(self._program.with_name(PACER)),
            "GRADWIRE_PACE_BYTES": str(int(slowest * 1448 / (1500 + self.network.overhead))),
        }

    def host_prefix(self, index: int) -> list[str]:
        return [str(self._program), "launch", "-", "-", "-", "--"]

    def port(self, requested: int | None) -> int:
        """Hosts share one address here, so the port must be free on this machine."""
        taken = listening_ports()
        if requested is not None:
            if requested in taken:
                raise ConfigError(
                    f"port: {requested} is in use on this machine; give another with --port, or leave it out"
                )
            return requested
        for port in range(EPHEMERAL_FROM, EPHEMERAL_TO):
            if port not in taken:
                return port
        raise ConfigError(f"port: all ports from {EPHEMERAL_FROM} on are in use on this machine; give one with --port")

    def begin(self) -> None:
        pass

    def check(self) -> None:
        pass

    def apply(self, change: Change) -> None:
        raise ConfigError("lab: loopback mode cannot change links; run as root for a real network")

    def stats(self) -> EmulatorStats:
        nothing = LinkStats(0, 0, 0, 0, 0, 0, 0, 0)
        return EmulatorStats(
            received=0,
            sent=0,
            unroutable=0,
            write_errors=0,
            wakeups=0,
            cpu_seconds=0.0,
            realtime=False,
            lateness_bounds_us=[1000],
            lateness=[0, 0],
            lateness_max_us=0.0,
            lateness_mean_us=0.0,
            device_drops=[],
            links=[nothing] * len(self.network.links),
            limits=LOOPBACK_LIMITS,
        )

    def close(self) -> None:
        pass


def listening_ports(tables: tuple[Path, ...] = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))) -> set[int]:
    """Ports in use, from the kernel's table, without opening a socket."""
    found = set()
    for table in tables:
        if not table.exists():
            continue
        for line in table.read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":  # LISTEN
                found.add(int(fields[1].rpartition(":")[2], 16))
    return found
