"""Emulator config: a Network as commands of the emulator (native/emulator/control.h describes them). Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from gradwire.errors import ConfigError
from gradwire.network import Burst, Change, Host, LinkSpec, Nat, Network, RateTrace, dilated, routes

PREFIX, PREFIX6, PREFIX_BEHIND_NAT = 16, 64, 24
MAX_HOSTS = 200
# Time constant of a link's jitter in seconds: the delay of packets further apart is nearly independent.
JITTER_MEMORY = 0.05


def address(index: int, ipv6: bool = False) -> str:
    """A host's address in 10.77.0.0/16 or fd77::/64, which exist only inside namespaces: all labs can use the same."""
    if ipv6:
        return f"fd77::{index + 1:x}"
    return f"10.77.{index // 250}.{index % 250 + 1}"


def own_address(network: Network, index: int) -> str:
    """The address of a host's interface: behind a NAT a private one, else the one at which the others reach it."""
    behind_nat = network.hosts[index].nat is not None
    return f"192.168.{index + 1}.2" if behind_nat else address(index, network.ipv6)


def compile_network(network: Network, factor: float = 1.0, settings: Mapping[str, int] | None = None) -> list[str]:
    """All commands up to `start`, in time stretched by `factor`; ConfigError if the lab cannot run the network.

    `settings` are names below /proc/sys/net/ipv4 with their values on every host.
    """
    if len(network.hosts) > MAX_HOSTS:
        raise ConfigError(
            f"hosts: the lab runs {MAX_HOSTS} at most, not {len(network.hosts)}; use `gradwire simulate` instead"
        )
    extra = "".join(f" {name}={value}" for name, value in (settings or {}).items())
    stretched = dilated(network, factor)
    index_of = {host.name: index for index, host in enumerate(network.hosts)}
    lines = [
        f"host {host.name} {own_address(network, i)} {_prefix(network, host)} {network.mtu_of(host.name)} "
        f"{network.congestion_of(host)}{extra}"
        for i, host in enumerate(network.hosts)
    ]
    lines += [
        f"nat {i} {_nat(host.nat, address(i), factor, network.seed * 1_000_003 + i)}"
        for i, host in enumerate(network.hosts)
        if host.nat
    ]
    memory = "" if factor == 1 else f" jitter_memory={_ns(JITTER_MEMORY * factor)}"
    for index, link in enumerate(stretched.links):
        # Each link has its own generator: its losses do not depend on the traffic of other links.
        seed = network.seed * 1_000_003 + index
        lines.append(f"link {seed} {network.overhead} {spec_values(link.spec)}{memory}")
    for index, link in enumerate(stretched.links):
        if link.spec.trace:
            lines.append(f"trace {index} {_trace(link.spec.trace)}")
    # Routes are those of the undilated network: the cost of a hop is not stretched, so that others could win.
    for (source, target), path in routes(network).items():
        lines.append(f"route {index_of[source]} {index_of[target]} {' '.join(map(str, path))}")
    for change in stretched.changes:
        lines += [f"change {_ns(change.at)} {i} {change_values(change)}" for i in matching_links(network, change)]
    return lines


def matching_links(network: Network, change: Change) -> list[int]:
    return [index for index, link in enumerate(network.links) if change.matches(link)]


def spec_values(spec: LinkSpec) -> str:
    parts = [
        f"rate={_number(spec.rate)}",
        f"delay={_ns(spec.delay)}",
        f"jitter={_ns(spec.jitter)}",
        f"loss={spec.loss!r}",
        f"reorder={spec.reorder!r}",
        f"reorder_by={_ns(spec.reorder_by)}",
        f"duplicate={spec.duplicate!r}",
        f"queue={_number(spec.queue_bytes)}",
        f"mtu={spec.mtu}",
    ]
    return " ".join(parts + _burst(spec.burst))


def change_values(change: Change) -> str:
    parts = []
    if change.rate is not None:
        parts.append(f"rate={_number(change.rate)}")
    if change.delay is not None:
        parts.append(f"delay={_ns(change.delay)}")
    if change.jitter is not None:
        parts.append(f"jitter={_ns(change.jitter)}")
    parts += [
        f"{name}={value!r}" for name in ("loss", "reorder", "duplicate") if (value := getattr(change, name)) is not None
    ]
    if change.reorder_by is not None:
        parts.append(f"reorder_by={_ns(change.reorder_by)}")
    if change.queue is not None:
        parts.append(f"queue={_number(float(change.queue))}")
    parts += _burst(change.burst)
    if not parts:
        raise ConfigError(f"change at {float(change.at):g} s on {change.link!r}: changes nothing; give it a value")
    return " ".join(parts)


def _prefix(network: Network, host: Host) -> int:
    return PREFIX_BEHIND_NAT if host.nat else PREFIX6 if network.ipv6 else PREFIX


def _nat(nat: Nat, public: str, factor: float, seed: int) -> str:
    parts = [nat.kind, public, _ns(float(nat.timeout) * factor), seed, *nat.forward]
    return " ".join(map(str, parts))


def _burst(burst: Burst | None) -> list[str]:
    if burst is None:
        return []
    return [f"burst_enter={burst.enter!r}", f"burst_leave={burst.leave!r}", f"burst_loss={burst.loss!r}"]


def _trace(trace: RateTrace) -> str:
    steps = " ".join(f"{_ns(at)}:{rate:.6g}" for at, rate in zip(trace.times, trace.rates, strict=True))
    return f"{_ns(trace.period)} {steps}"


def _ns(seconds: float) -> int:
    return round(float(seconds) * 1e9)


def _number(value: float) -> str:
    return "inf" if math.isinf(value) else repr(float(value))
