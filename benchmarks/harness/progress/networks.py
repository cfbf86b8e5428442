"""Networks of the progress benchmark: steady and changing ones, and two recorded rates.

`drop` is 1 Gbit/s that falls to 20 Mbit/s and recovers, at shares of the time that the run would take without a
network, so that it is met by every task. Traces of the data directory are what each host's access link carries in both
directions; each host starts at another place of the trace.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from gradwire.errors import ConfigError
from gradwire.network import Change, LinkSpec, Network, RateTrace, load_trace, preset
from gradwire.network.network import SWITCH, Host, as_hosts, host_names, star
from gradwire.units import Bytes, Rate, Seconds

PRESETS: Final = ("lan100", "lan1g", "wan-us-eu", "lossy-wifi", "lte", "starlink-like")
TRACES: Final = {
    "att-lte": Path("net") / "mahimahi" / "ATT-LTE-driving-2016.down.gz",
    "norway-train": Path("net") / "abr" / "norway_train_15_part2.log",
}
NETWORKS: Final = ("20mbit", *PRESETS, "drop", *TRACES)
# Megabits per second and seconds from host to host: 20mbit, and two that are not in the default table, for local steps.
STARS: Final = {"20mbit": (20, 0.01), "5mbit": (5, 0.01), "150ms": (100, 0.075)}
STEADY: Final = (*STARS, "lan100", "lan1g", "wan-us-eu", "lossy-wifi")
# Shares of steps x compute at which the rate falls, and recovers.
FALLS: Final = 0.3
RECOVERS: Final = 0.9
# One-way delay of a mobile access link, and its queue, as in the preset lte.
MOBILE: Final = LinkSpec(delay=Seconds(0.02), queue=Bytes(1_000_000))
# Bins of a recorded trace in seconds. Bursts of single milliseconds are smoothed by the queue of a real link.
BIN: Final = 0.1


def network_of(name: str, hosts: int, span: float, directory: Path | None) -> Network:
    """`span` is what the run would take without a network, in seconds."""
    if name in PRESETS:
        return preset(name, hosts)
    if name in STARS:
        mbit, delay = STARS[name]
        return _star(name, hosts, LinkSpec(Rate.from_mbit(mbit), Seconds(delay / 2)))
    if name == "drop":
        changes = (
            Change(Seconds(FALLS * span), "*", Rate.from_mbit(20)),
            Change(Seconds(RECOVERS * span), "*", Rate.from_mbit(1000)),
        )
        return replace(_star(name, hosts, LinkSpec(Rate.from_mbit(1000), Seconds(0.0005))), changes=changes)
    if name in TRACES:
        if directory is None or not (directory / TRACES[name]).is_file():
            raise ConfigError(f"nets: {name} needs {TRACES[name]} under --data-dir")
        return _traced(name, hosts, binned(load_trace(directory / TRACES[name])))
    raise ConfigError(f"nets: {name!r} is not one of {', '.join((*NETWORKS, *STARS))}")


def needs_data(name: str) -> bool:
    return name in TRACES


def binned(trace: RateTrace, seconds: float = BIN) -> RateTrace:
    """Mean rates over bins; the bytes carried stay the same."""
    count = max(1, round(trace.period / seconds))
    width = trace.period / count
    carried = [0.0] * count
    ends = (*trace.times[1:], trace.period)
    for begin, end, rate in zip(trace.times, ends, trace.rates, strict=True):
        place, at = min(count - 1, int(begin / width)), begin
        while at < end:
            until = end if place == count - 1 else min(end, (place + 1) * width)
            carried[place] += rate * (until - at)
            place, at = place + 1, until
    rates = tuple(one / width for one in carried)
    return RateTrace(tuple(width * index for index in range(count)), rates, trace.period)


def rotated(trace: RateTrace, share: float) -> RateTrace:
    """The same trace, begun at this share of its steps."""
    first = int(share * len(trace.times))
    if first == 0:
        return trace
    start = trace.times[first]
    times = [at - start for at in trace.times[first:]] + [at - start + trace.period for at in trace.times[:first]]
    return RateTrace(tuple(times), (*trace.rates[first:], *trace.rates[:first]), trace.period)


def _star(name: str, hosts: int, access: LinkSpec) -> Network:
    named = as_hosts(host_names(hosts))
    return Network(name, named, star(named, access), (SWITCH,))


def _traced(name: str, hosts: int, trace: RateTrace) -> Network:
    def access(host: Host) -> tuple[LinkSpec, LinkSpec]:
        own = replace(MOBILE, trace=rotated(trace, int(host.name[1:]) / hosts))
        return own, own

    named = as_hosts(host_names(hosts))
    return Network(name, named, star(named, access), (SWITCH,))
