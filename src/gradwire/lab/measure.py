"""Measure: checks the network with ping and iperf3 between hosts: expected against measured values.

Expected values follow from the path's links: delays add, the slowest link limits the rate, delivery shares multiply.
TCP's goodput is the wire rate without headers: 1448 of 1538 bytes in a full Ethernet packet. In a dilated lab ping and
iperf3 measure in the machine's time; `measure` converts, the other functions do not.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from gradwire.errors import LinkError
from gradwire.lab.cross_traffic import require_tool
from gradwire.lab.interrupts import Interrupts
from gradwire.lab.lab import Lab
from gradwire.lab.process import HostResult, ProcessWatcher
from gradwire.network import LinkSpec, routes

# Bytes of IP and TCP headers in a data packet, with TCP's timestamps.
IP_TCP_HEADERS, IP6_TCP_HEADERS = 52, 72
RATE_TOLERANCE = 0.03
DELAY_TOLERANCE_MS, DELAY_SHARE = 0.5, 0.02
PORT = 5201


@dataclass(frozen=True, slots=True)
class Measurement:
    """One pair of hosts: expected and measured; `*_good` if within the lab's tolerance (None: not applicable)."""

    source: str
    target: str
    wanted_rtt_ms: float
    rtt_ms: float
    rtt_good: bool | None
    wanted_mbit: float
    mbit: float
    rate_good: bool | None
    wanted_loss: float
    loss: float | None
    loss_good: bool | None


def run_on(lab: Lab, host: str, command: Sequence[str], timeout: float) -> HostResult:
    """Run a command on one host and wait for its end."""
    deadline = time.monotonic() + timeout
    with Interrupts() as interrupts:
        watcher = ProcessWatcher([lab.spawn(host, command)])
        try:
            while watcher.running and interrupts.noted is None and time.monotonic() < deadline:
                watcher.step(0.1)
            if watcher.running and interrupts.noted is None:
                raise LinkError(f"lab: {command[0]} on {host} did not end within {timeout:g} s")
            watcher.drain()
        finally:
            watcher.end_all(grace=0.2)
            watcher.close()
    return watcher.processes[0].result()


def ping_ms(lab: Lab, source: str, target: str, count: int = 10, interval: float = 0.05) -> list[float]:
    """Round trips in milliseconds of the answered pings. The first is left out: caches are cold."""
    tool = require_tool("ping", "iputils-ping", "lab check")
    arguments = [tool, "-n", "-c", str(count + 1), "-i", str(interval), "-W", "5", lab.address(target)]
    result = run_on(lab, source, arguments, timeout=count * (interval + 1) + 10)
    times = [float(line.split("time=")[1].split()[0]) for line in result.output.splitlines() if "time=" in line]
    if len(times) < 2:
        raise LinkError(f"lab: {target} did not answer {source}'s ping: {result.output.strip()[-200:]}")
    return times[1:]


def iperf(lab: Lab, source: str, target: str, *options: str, seconds: float = 3.0) -> dict[str, object]:
    """The `end` record of one iperf3 run from source to target."""
    tool = require_tool("iperf3", "iperf3", "lab check")
    with Interrupts():
        server = ProcessWatcher([lab.spawn(target, [tool, "-s", "-1", "-p", str(PORT), "--forceflush"])])
        try:
            deadline = time.monotonic() + 10
            while not any("listening" in line for line in server.processes[0].output):
                if not server.running or time.monotonic() > deadline:
                    raise LinkError(f"lab: iperf3 does not listen on {target}: {server.processes[0].output}")
                server.step(0.02)
            arguments = [tool, "-c", lab.address(target), "-p", str(PORT), "-J", "-t", f"{seconds:g}", *options]
            result = run_on(lab, source, arguments, timeout=seconds + 60)
            report = json.loads(result.output)
        finally:
            server.end_all(grace=0.2)
            server.close()
    if "error" in report:
        raise LinkError(f"lab: iperf3 from {source} to {target}: {report['error']}")
    found: dict[str, object] = report["end"]
    return found


def tcp_mbit(lab: Lab, source: str, target: str, *options: str, seconds: float = 3.0) -> float:
    """TCP's goodput at the receiver."""
    received = iperf(lab, source, target, *options, seconds=seconds)["sum_received"]
    assert isinstance(received, dict)
    return float(received["bits_per_second"]) / 1e6


def path_specs(lab: Lab, source: str, target: str) -> list[LinkSpec]:
    return [lab.network.links[index].spec for index in routes(lab.network)[source, target]]


def wanted_mbit(specs: Sequence[LinkSpec], overhead: int, headers: int = IP_TCP_HEADERS) -> float:
    """TCP's goodput if the slowest link is full."""
    wire = min(spec.mean_rate.mbit for spec in specs)
    mtu = min(spec.mtu for spec in specs)
    return wire * (mtu - headers) / (mtu + overhead)


def measure(lab: Lab, source: str, target: str, seconds: float = 3.0) -> Measurement:
    forward, backward = path_specs(lab, source, target), path_specs(lab, target, source)
    wanted_rtt = sum(float(spec.delay) for spec in forward + backward) * 1e3
    # Transmission time of a ping's 122 bytes on each link.
    wanted_rtt += sum(0.0 if math.isinf(s.mean_rate) else 122 / float(s.mean_rate) * 1e3 for s in forward + backward)
    jitter_ms = math.sqrt(sum(float(spec.jitter) ** 2 for spec in forward + backward)) * 1e3
    factor = lab.dilation.factor
    times = sorted(ping_ms(lab, source, target))
    rtt = lab.dilation.seconds(times[len(times) // 2])
    loss = 1 - math.prod(1 - spec.mean_loss for spec in forward)
    # TCP treats reordered packets as lost and slows down.
    steady = not (loss or lab.network.cross or any(spec.trace or spec.reorder or spec.duplicate for spec in forward))
    headers = IP6_TCP_HEADERS if lab.network.ipv6 else IP_TCP_HEADERS
    wanted = wanted_mbit(forward, lab.network.overhead, headers)
    # The first second is left out: it is TCP's slow start.
    options = ["-O", str(math.ceil(factor))]
    got = tcp_mbit(lab, source, target, *options, seconds=seconds * factor) * factor
    limit = DELAY_TOLERANCE_MS + DELAY_SHARE * wanted_rtt + 2 * jitter_ms
    return Measurement(
        source,
        target,
        round(wanted_rtt, 3),
        round(rtt, 3),
        None if any(spec.trace for spec in forward + backward) else abs(rtt - wanted_rtt) <= limit,
        round(wanted, 2),
        round(got, 2),
        abs(got / wanted - 1) <= RATE_TOLERANCE if steady and not math.isinf(wanted) else None,
        round(loss, 6),
        *(_loss(lab, source, target, forward, loss, seconds) if loss else (None, None)),
    )


def udp_loss(lab: Lab, source: str, target: str, mbit: float, seconds: float) -> tuple[int, int]:
    """Packets lost and sent by a UDP flow far below the rate, so that only random loss affects it."""
    record = iperf(lab, source, target, "-u", "-l", "1000", "-b", f"{mbit:.3f}M", seconds=seconds)["sum"]
    assert isinstance(record, dict)
    return int(record["lost_packets"]), int(record["packets"])


def _loss(
    lab: Lab, source: str, target: str, specs: Sequence[LinkSpec], wanted: float, seconds: float
) -> tuple[float, bool]:
    slowest = min(spec.mean_rate.mbit for spec in specs)
    lost, sent = udp_loss(
        lab, source, target, min(10.0, slowest / 5) / lab.dilation.factor, seconds * lab.dilation.factor
    )
    # Losses in bursts vary more: a burst of mean length 1/leave is one event, not 1/leave events.
    length = max((1 / spec.burst.leave for spec in specs if spec.burst), default=1.0)
    sigma = math.sqrt(max(sent, 1) * wanted * (1 - wanted) * (2 * length if length > 1 else 1))
    return lost / max(sent, 1), abs(lost - sent * wanted) <= 4 * sigma + 1
