"""Networks of the progress benchmark: steady and changing ones, and two recorded rates.

`drop` is 1 Gbit/s that falls to 20 Mbit/s and recovers, at shares of the time that the run would take without a
network, so that it is met by every task. Traces of the data directory are what each host's access link carries in both
directions; each host starts at another place of the trace.

Networks that gradwire was not developed with: `flap` changes between 100 and 5 Mbit/s every three seconds, `rising`
doubles from 10 Mbit/s to 1.28 Gbit/s; others are written as rate, round trip and loss (`50mbit-20ms-2%`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
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
# Others are written as rate, round trip and loss: 50mbit-20ms-2%.
WRITTEN: Final = re.compile(r"(\d+)mbit-(\d+)ms(?:-([\d.]+)%)?")
# Mbit/s at the beginning, and changes.
Steps = tuple[float, tuple[Change, ...]]
# Seconds for which `flap` stays at one of its rates; shares of the run at which the rate of `rising` doubles.
FLAPS: Final = 3.0
RISES: Final = 8
# `flap` ends after so many times the seconds that the run would take without a network.
LASTS: Final = 30
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
    if name in CHANGING:
        rate, changes = CHANGING[name](span)
        return replace(_star(name, hosts, LinkSpec(Rate.from_mbit(rate), Seconds(0.0005))), changes=changes)
    if name in TRACES:
        if directory is None or not (directory / TRACES[name]).is_file():
            raise ConfigError(f"nets: {name} needs {TRACES[name]} under --data-dir")
        return _traced(name, hosts, binned(load_trace(directory / TRACES[name])))
    return _star(name, hosts, _written(name))


def _written(name: str) -> LinkSpec:
    """The access link of a network whose name says what it is."""
    if name in STARS:
        mbit, delay = STARS[name]
        return LinkSpec(Rate.from_mbit(mbit), Seconds(delay / 2))
    written = WRITTEN.fullmatch(name)
    if written is None:
        known = ", ".join((*NETWORKS, *STARS, *CHANGING))
        raise ConfigError(f"nets: {name!r} is not one of {known}, and not RATEmbit-TRIPms-LOSS%")
    rate, trip, loss = map(float, written.groups("0"))
    return LinkSpec(Rate.from_mbit(rate), Seconds(trip / 4000), loss=loss / 200)


def _changes(rates: Iterable[tuple[float, float]]) -> tuple[Change, ...]:
    return tuple(Change(Seconds(at), "*", Rate.from_mbit(mbit)) for at, mbit in rates)


def _drop(span: float) -> Steps:
    return 1000, _changes([(FALLS * span, 20), (RECOVERS * span, 1000)])


def _flap(span: float) -> Steps:
    turns = range(1, round(LASTS * span / FLAPS))
    return 100, _changes((FLAPS * turn, 5 if turn % 2 else 100) for turn in turns)


def _rising(span: float) -> Steps:
    return 10, _changes((turn * span / RISES, 10 * 2**turn) for turn in range(1, RISES))


CHANGING: Final[dict[str, Callable[[float], Steps]]] = {"drop": _drop, "flap": _flap, "rising": _rising}


def is_steady(name: str) -> bool:
    return name in STEADY or WRITTEN.fullmatch(name) is not None


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
