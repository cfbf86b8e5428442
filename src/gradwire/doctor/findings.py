"""Findings: common set-up mistakes in facts and measurements, each with its fix. Pure."""

from __future__ import annotations

import ipaddress
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from gradwire.doctor.site_report import find_site_mistakes
from gradwire.doctor.types import Finding, FlowResult, HostFacts, NatFacts, NatGuess, Reach, Severity
from gradwire.sense.slow_start import slow_start_seconds
from gradwire.units import Rate, Seconds

# One lost packet in a hundred halves the rate of loss-based TCP on any path beyond a local network.
LOSSY = 0.01
# A pair below this share of the median rate delays every step.
SLOW = 0.5
# Seconds that TCP's restart after idle must cost on some path before it is worth a setting.
RESTART: Final = 0.05
ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}


def find(
    hosts: Sequence[HostFacts], reaches: Sequence[Reach], flows: Sequence[FlowResult], nats: Sequence[NatFacts] = ()
) -> list[Finding]:
    """All findings, most severe first."""
    found = [
        *_interfaces(hosts, reaches),
        *_nats(hosts, reaches, nats),
        *_firewall(hosts, reaches, {nat.rank for nat in nats if nat.hidden}),
        *_black_holes(hosts, reaches),
        *_versions(hosts),
        *_loss(hosts, reaches),
        *_slow(hosts, flows),
        *_restarts(hosts, reaches, flows),
        *find_site_mistakes(hosts, reaches, flows),
    ]
    return sorted(found, key=lambda finding: ORDER[finding.severity])


def _name(hosts: Sequence[HostFacts], rank: int) -> str:
    return f"rank {rank} ({hosts[rank].host})"


def _interfaces(hosts: Sequence[HostFacts], reaches: Sequence[Reach]) -> list[Finding]:
    several = len({host.route_address for host in hosts}) > 1
    unreachable = {reach.target for reach in reaches if reach.gloo_reachable is False}
    found = []
    for host in hosts:
        route = host.route_interface
        right = route.name if route else "the interface that reaches the others"
        fix = f"export GLOO_SOCKET_IFNAME={right} on {host.host}"
        who = _name(hosts, host.rank)
        if host.gloo_address is None:
            there = ", ".join(one.name for one in host.interfaces)
            text = f"{who}: GLOO_SOCKET_IFNAME={host.gloo_setting} is not an interface of this host; it has {there}"
            found.append(Finding("error", "interface-missing", text, fix))
        elif several and ipaddress.ip_address(host.gloo_address).is_loopback:
            why = f"GLOO_SOCKET_IFNAME={host.gloo_setting}" if host.gloo_setting else "its host name resolves to it"
            text = (
                f"{who}: gloo publishes the loopback address {host.gloo_address}, unreachable from other hosts ({why})"
            )
            found.append(Finding("error", "loopback-advertised", text, fix))
        elif host.gloo_address != host.route_address:
            severity: Severity = "error" if host.rank in unreachable else "warning"
            outcome = "unreachable" if host.rank in unreachable else "also reachable"
            text = (
                f"{who}: gloo publishes {host.gloo_address}, but the route to MASTER_ADDR uses "
                f"{host.route_address} ({right}); the published address is {outcome}"
            )
            found.append(Finding(severity, "wrong-interface", text, fix))
    return found


# What each kind does to a peer that the host has not sent to.
_NAT_DOES: Final[dict[NatGuess, str]] = {
    "full-cone": "everybody may send to the public port that it has used once",
    "port-restricted": "only those that it has sent to may answer",
    "symmetric": "it has another public port for each peer, which only that peer may answer",
}


def _nats(hosts: Sequence[HostFacts], reaches: Sequence[Reach], nats: Sequence[NatFacts]) -> list[Finding]:
    """A NAT is an error where others must open a connection through it and cannot."""
    found = []
    for nat in nats:
        if not nat.hidden:
            continue
        blocked = any(reach.target == nat.rank and reach.problem for reach in reaches)
        text = (
            f"{_name(hosts, nat.rank)} is behind a {nat.kind} NAT: others see {nat.address} instead of its address "
            f"{hosts[nat.rank].route_address}, and {_NAT_DOES[nat.kind]}"
        )
        fix = (
            f"forward TCP and UDP ports 29600-29609 to {hosts[nat.rank].host} on its router, export "
            f"GRADWIRE_PORTS=29600-29609 and GRADWIRE_ADVERTISE={nat.address} there, and use gradwire's backend; "
            "LTP needs nothing where no other rank is behind a NAT (docs/howto/two-offices.md)"
        )
        found.append(Finding("error" if blocked else "info", "behind-nat", text, fix))
    return found


def _firewall(hosts: Sequence[HostFacts], reaches: Sequence[Reach], hidden: set[int]) -> list[Finding]:
    """All ranks have reached the store, so a closed port means a packet filter, unless the rank is behind a NAT."""
    blocked: dict[int, list[Reach]] = defaultdict(list)
    for reach in reaches:
        if reach.problem and reach.target not in hidden:
            blocked[reach.target].append(reach)
    found = []
    for target, those in sorted(blocked.items()):
        sources = ", ".join(str(reach.source) for reach in those)
        text = (
            f"{_name(hosts, target)} accepts no connections from rank {sources} ({those[0].problem}), "
            "although all of them can reach the store"
        )
        fix = f"open TCP ports 1024-65535 between the hosts in {hosts[target].host}'s firewall (gloo uses any of them)"
        found.append(Finding("error", "firewall", text, fix))
    return found


def _black_holes(hosts: Sequence[HostFacts], reaches: Sequence[Reach]) -> list[Finding]:
    found = []
    for reach in reaches:
        if reach.mtu is not None and reach.mtu_wanted is not None and reach.mtu < reach.mtu_wanted:
            text = (
                f"packets above {reach.mtu} bytes are lost between {_name(hosts, reach.source)} and "
                f"{_name(hosts, reach.target)}, but the interface's MTU is {reach.mtu_wanted}: an MTU black hole"
            )
            fix = f"ip link set dev INTERFACE mtu {reach.mtu} on {hosts[reach.source].host}, or repair the path"
            found.append(Finding("error", "mtu-black-hole", text, fix))
    return found


def _versions(hosts: Sequence[HostFacts]) -> list[Finding]:
    found = []
    for what in ("torch", "gradwire"):
        versions: dict[str, list[int]] = defaultdict(list)
        for host in hosts:
            versions[getattr(host, what)].append(host.rank)
        if len(versions) > 1:
            listed = "; ".join(f"{version} on ranks {ranks}" for version, ranks in sorted(versions.items()))
            text = f"the ranks run different versions of {what}: {listed}"
            found.append(Finding("error", f"{what}-versions", text, f"install one version of {what} everywhere"))
    return found


def _loss(hosts: Sequence[HostFacts], reaches: Sequence[Reach]) -> list[Finding]:
    connected = [reach for reach in reaches if not reach.problem and reach.udp_sent]
    silent = [reach for reach in connected if reach.udp_loss == 1.0]
    found = []
    if silent and len(silent) == len(connected):
        text = "no UDP packet was answered on any path: UDP is filtered (TCP works)"
        fix = "nothing to do, unless you want to use LTP, gradwire's UDP transport: then allow UDP between the hosts"
        found.append(Finding("info", "udp-filtered", text, fix))
        return found
    lossy = [reach for reach in connected if reach.udp_loss is not None and reach.udp_loss >= LOSSY]
    if lossy:
        worst = max(lossy, key=lambda reach: reach.udp_loss or 0.0)
        text = (
            f"{len(lossy)} of {len(connected)} paths lose packets; worst: {worst.udp_loss or 0:.1%} between "
            f"{_name(hosts, worst.source)} and {_name(hosts, worst.target)}, both directions together"
        )
        cubic = any(host.congestion != "bbr" for host in hosts)
        fix = "sysctl net.ipv4.tcp_congestion_control=bbr on all hosts: BBR does not slow down because of loss"
        found.append(Finding("warning", "lossy", text, fix if cubic else "check cables, duplex settings and Wi-Fi"))
    return found


def _slow(hosts: Sequence[HostFacts], flows: Sequence[FlowResult]) -> list[Finding]:
    rated = [flow for flow in flows if flow.rate]
    if len(rated) < 3:
        return []
    median = statistics.median(flow.rate or 0.0 for flow in rated)
    slow = [flow for flow in rated if (flow.rate or 0.0) < SLOW * median]
    if not slow:
        return []
    worst = min(slow, key=lambda flow: flow.rate or 0.0)
    text = (
        f"{len(slow)} of {len(rated)} paths have less than half of the median rate {Rate(median)}; worst: "
        f"{_name(hosts, worst.source)} to {_name(hosts, worst.target)} at {Rate(worst.rate or 0.0)}"
    )
    return [Finding("warning", "slow-path", text, "check this path first: every step waits for the slowest path")]


def _restarts(hosts: Sequence[HostFacts], reaches: Sequence[Reach], flows: Sequence[FlowResult]) -> list[Finding]:
    """On the path where it costs most: the time of TCP's restart from its initial window after a step's compute."""
    trips = {(reach.source, reach.target): reach.rtt for reach in reaches if reach.rtt}
    costs = [
        (slow_start_seconds(flow.rate * trip, trip, flow.rate), flow, trip)
        for flow in flows
        if flow.rate and (trip := trips.get((flow.source, flow.target))) and _begins_small(hosts[flow.source])
    ]
    cost, flow, trip = max(costs, key=lambda each: each[0], default=(0.0, None, 0.0))
    if flow is None or cost < RESTART:
        return []
    text = (
        f"after a pause of {Seconds(0.2 + trip)}, as between steps, TCP begins with a small window again: from "
        f"{_name(hosts, flow.source)} to {_name(hosts, flow.target)} a transfer then takes up to {Seconds(cost)} longer"
    )
    fix = (
        f"sysctl -w net.ipv4.tcp_slow_start_after_idle=0 on all hosts saves up to {Seconds(cost)} for each phase of an "
        "exchange; transport=ltp and BBR keep their rate over a pause"
    )
    return [Finding("info", "slow-start-after-idle", text, fix)]


def _begins_small(host: HostFacts) -> bool:
    return host.restarts and not host.congestion.startswith("bbr")
