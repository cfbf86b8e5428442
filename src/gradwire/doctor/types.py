"""What the doctor's parts tell each other. Peers' facts travel as JSON and are checked against these types."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["error", "warning", "info"]


class Interface(msgspec.Struct, frozen=True):
    """A network interface with an IPv4 address."""

    name: str
    address: str
    mtu: int


class HostFacts(msgspec.Struct, frozen=True):
    """What one rank knows of its own host.

    `route_address` is the local address from which packets to MASTER_ADDR leave; `gloo_address` the one that gloo
    will tell the other ranks (None when its interface does not exist), `gloo_setting` is GLOO_SOCKET_IFNAME.
    """

    rank: int
    host: str
    route_address: str
    gloo_setting: str
    gloo_address: str | None
    interfaces: list[Interface]
    torch: str
    gradwire: str
    congestion: str
    tcp_port: int
    udp_port: int

    @property
    def route_interface(self) -> Interface | None:
        return next((one for one in self.interfaces if one.address == self.route_address), None)


class Reach(msgspec.Struct, frozen=True):
    """What one rank found out about its way to another, apart from the rate. Seconds; None where nothing came back.

    `problem` says why no connection came about. `gloo_reachable`: whether the address that gloo will use for `target`
    leads to it. `mtu` is the largest IP packet that arrived, `mtu_wanted` what the interface would send.
    """

    source: int
    target: int
    problem: str = ""
    rtt: float | None = None
    gloo_reachable: bool | None = None
    udp_loss: float | None = None
    udp_sent: int = 0
    mtu: int | None = None
    mtu_wanted: int | None = None


class FlowResult(msgspec.Struct, frozen=True):
    """One bulk TCP transfer: payload bytes per second at the receiver, and the share of segments sent again."""

    source: int
    target: int
    problem: str = ""
    rate: float | None = None
    retransmitted: float = 0.0


class Finding(msgspec.Struct, frozen=True):
    """Something worth a sentence: what is wrong, and what to do."""

    severity: Severity
    code: str
    text: str
    fix: str


class LevelPrediction(msgspec.Struct, frozen=True):
    """A step at one level: seconds in all, of which `exposed` wait for the network; bytes each rank sends."""

    level: str
    seconds: float
    exposed: float
    wire_bytes: int


class DoctorReport(msgspec.Struct, frozen=True):
    """The whole examination."""

    hosts: list[HostFacts]
    reaches: list[Reach]
    flows: list[FlowResult]
    findings: list[Finding]
    model: str
    parameters: int
    compute_seconds: float
    predictions: list[LevelPrediction]
    recommendation: str
    partial: bool = False
