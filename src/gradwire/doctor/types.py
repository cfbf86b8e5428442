"""Types of the doctor: facts, measurements and the report. Peers' JSON is checked against them."""

from __future__ import annotations

from typing import Literal

import msgspec

Severity = Literal["error", "warning", "info"]
# What the NAT in front of a host does to UDP, as gradwire.network.nat names it. "none": peers see the host's own
# address; "not known": no peer answered.
NatGuess = Literal["none", "full-cone", "port-restricted", "symmetric", "not known"]
# How sums would be formed: between all ranks, along trees, or inside sites first and then along trees.
Way = Literal["flat", "trees", "sites first", "not known"]


class Interface(msgspec.Struct, frozen=True):
    """A network interface with an IPv4 address."""

    name: str
    address: str
    mtu: int


class HostFacts(msgspec.Struct, frozen=True):
    """Facts of one rank's host.

    `route_address` is the local address of packets to MASTER_ADDR; `gloo_address` the one that gloo publishes (None if
    its interface does not exist); `gloo_setting` is GLOO_SOCKET_IFNAME; `restarts` is the kernel's setting
    net.ipv4.tcp_slow_start_after_idle; `site` is GRADWIRE_SITE; `reflector_ports` say where a packet came from.
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
    restarts: bool = False
    site: str = ""
    reflector_ports: list[int] = []

    @property
    def route_interface(self) -> Interface | None:
        return next((one for one in self.interfaces if one.address == self.route_address), None)


class Reach(msgspec.Struct, frozen=True):
    """One rank's measurements of the path to another, except the rate. Seconds; None if there was no response.

    `problem` is the reason for a failed connection. `gloo_reachable`: whether gloo's address of `target` leads to it.
    `mtu` is the largest IP packet that arrived, `mtu_wanted` the interface's MTU.
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
    """One bulk TCP transfer: payload bytes per second at the receiver, and the share of retransmitted segments."""

    source: int
    target: int
    problem: str = ""
    rate: float | None = None
    retransmitted: float = 0.0


class NatFacts(msgspec.Struct, frozen=True):
    """The NAT in front of a rank: its kind, and the public address that others see ("" without one)."""

    rank: int
    kind: NatGuess
    address: str = ""

    @property
    def hidden(self) -> bool:
        return self.kind not in ("none", "not known")


class Finding(msgspec.Struct, frozen=True):
    """A problem and its fix."""

    severity: Severity
    code: str
    text: str
    fix: str


class SiteFacts(msgspec.Struct, frozen=True):
    """Ranks that are near each other. Seconds; None where there is no such path.

    `name` is what GRADWIRE_SITE says (`named`), otherwise a proposal for it. `inside` is the longest round trip between
    two of the ranks, `outside` the shortest to another site.
    """

    name: str
    ranks: list[int]
    hosts: list[str]
    inside: float | None
    outside: float | None
    named: bool


class LevelPrediction(msgspec.Struct, frozen=True):
    """A step at one level: total seconds, of these `exposed` waiting for the network, and bytes sent by each rank.

    `own_wire` is the step over a transport of gradwire's own. `price` is how many times more steps the level may need
    for the same loss: cautious for sparse levels, whose cost depends on the model.
    """

    level: str
    seconds: float
    exposed: float
    wire_bytes: int
    own_wire: float
    price: float


class RouteAdvice(msgspec.Struct, frozen=True):
    """What plan = "auto" would do: seconds of an exchange between all ranks and along trees, each at its best level; 0
    where nothing was predicted, because links are about equal or not known."""

    way: Way
    flat: float = 0.0
    flat_level: str = ""
    trees: float = 0.0
    trees_level: str = ""
    reason: str = ""


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
    sites: list[SiteFacts] = []
    routes: RouteAdvice | None = None
    nats: list[NatFacts] = []


class GpuCheck(msgspec.Struct, frozen=True):
    """One check's result; `text` says what was measured, or what went wrong."""

    name: str
    passed: bool
    text: str


class GpuReport(msgspec.Struct, frozen=True):
    """Rates in bytes per second; `hidden` is the share of a copy's time that compute hid."""

    gpu: str
    torch: str
    cuda: str
    nccl: str
    checks: list[GpuCheck]
    to_host: float
    to_device: float
    hidden: float

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)
