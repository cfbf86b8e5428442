"""Dilate: a network as it must run on a machine whose time is stretched by a factor. Pure.

Rates are divided by the factor; delays, jitter and every time of a schedule or a trace are multiplied by it. Queues
keep their bytes, so the time that a packet waits in them is stretched too. Shares of packets (loss, bursts, reordering,
duplication) stay. A program whose clock is slower by the same factor sees the network as it was before.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from gradwire.errors import ConfigError
from gradwire.network.link_spec import LinkSpec
from gradwire.network.network import Change, CrossTraffic, Link, Network
from gradwire.network.rate_trace import RateTrace
from gradwire.units import Bytes, Rate, Seconds

# At 100 a second takes more than a minute and a half; a larger factor is probably a mistake in the unit.
LARGEST: Final = 100.0


def checked_factor(value: float, setting: str = "dilate") -> float:
    """`value` if it is a usable factor; ConfigError names the setting otherwise."""
    try:
        factor = float(value)
    except (TypeError, ValueError):
        factor = math.nan
    if isinstance(value, bool) or not 1 <= factor <= LARGEST:
        raise ConfigError(
            f"{setting}: must be a number from 1 (real time) to {LARGEST:g}, but it is {value!r}; "
            "write for example 4: rates are divided and times multiplied by 4"
        )
    return factor


def dilated(network: Network, factor: float) -> Network:
    """The network whose every time is `factor` times as long; itself for a factor of 1."""
    if factor == 1:
        return network
    try:
        return replace(
            network,
            links=tuple(Link(link.source, link.target, dilated_spec(link.spec, factor)) for link in network.links),
            changes=tuple(dilated_change(change, factor) for change in network.changes),
            cross=tuple(_flow(flow, factor) for flow in network.cross),
        )
    except ConfigError as error:
        raise ConfigError(f"dilate: {factor:g} is too much for {network.name}: {error}") from error


def dilated_spec(spec: LinkSpec, factor: float) -> LinkSpec:
    size = spec.queue_bytes
    return replace(
        spec,
        rate=_rate(spec.rate, factor),
        delay=_time(spec.delay, factor),
        jitter=_time(spec.jitter, factor),
        # The default is a time at the rate: stated in bytes, it does not change with the rate.
        queue=None if math.isinf(size) else Bytes(round(size)),
        trace=None if spec.trace is None else _trace(spec.trace, factor),
        reorder_by=_time(spec.reorder_by, factor),
    )


def dilated_change(change: Change, factor: float) -> Change:
    return replace(
        change,
        at=_time(change.at, factor),
        rate=None if change.rate is None else _rate(change.rate, factor),
        delay=None if change.delay is None else _time(change.delay, factor),
        jitter=None if change.jitter is None else _time(change.jitter, factor),
        reorder_by=None if change.reorder_by is None else _time(change.reorder_by, factor),
    )


def _flow(flow: CrossTraffic, factor: float) -> CrossTraffic:
    return replace(
        flow,
        start=_time(flow.start, factor),
        stop=None if flow.stop is None else _time(flow.stop, factor),
        rate=None if flow.rate is None else _rate(flow.rate, factor),
    )


def _trace(trace: RateTrace, factor: float) -> RateTrace:
    return RateTrace(
        tuple(at * factor for at in trace.times), tuple(rate / factor for rate in trace.rates), trace.period * factor
    )


def _rate(rate: Rate, factor: float) -> Rate:
    return Rate(float(rate) / factor)


def _time(seconds: Seconds, factor: float) -> Seconds:
    return Seconds(float(seconds) * factor)
