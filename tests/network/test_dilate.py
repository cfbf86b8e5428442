"""A dilated network is the same network in another unit of time."""

from __future__ import annotations

import math

import pytest

from gradwire.errors import ConfigError
from gradwire.network import (
    PRESETS,
    Burst,
    Change,
    CrossTraffic,
    LinkSpec,
    Network,
    RateTrace,
    dilated,
    parse_network,
    preset,
)
from gradwire.network.dilate import LARGEST, checked_factor, dilated_change, dilated_spec
from gradwire.network.network import as_hosts, both
from gradwire.units import Bytes, Rate, Seconds

TRACE = RateTrace((0.0, 0.5), (1e6, 0.0), 1.0)
SPEC = LinkSpec(
    Rate.from_mbit(100), Seconds(0.02), Seconds(0.001), 0.01, Burst(0.1, 0.5), Bytes(50_000), reorder_by=Seconds(0.003)
)


def test_times_are_multiplied_rates_divided_and_shares_kept() -> None:
    spec = dilated_spec(SPEC, 4)
    assert spec == LinkSpec(
        Rate.from_mbit(25), Seconds(0.08), Seconds(0.004), 0.01, Burst(0.1, 0.5), Bytes(50_000),
        reorder_by=Seconds(0.012),
    )  # fmt: skip
    assert dilated_spec(LinkSpec(trace=TRACE), 4).trace == RateTrace((0.0, 2.0), (0.25e6, 0.0), 4.0)


def test_queues_keep_their_bytes_even_where_their_default_is_a_time() -> None:
    for spec in (SPEC, LinkSpec(Rate.from_mbit(800)), LinkSpec(trace=TRACE), LinkSpec()):
        assert dilated_spec(spec, 8).queue_bytes == pytest.approx(spec.queue_bytes)
    assert math.isinf(dilated_spec(LinkSpec(), 8).rate)


def test_schedules_and_cross_traffic_are_stretched() -> None:
    change = Change(Seconds(2), "*", Rate.from_mbit(10), Seconds(0.01), Seconds(0.002), 0.1, reorder_by=Seconds(0.001))
    assert dilated_change(change, 2) == Change(
        Seconds(4), "*", Rate.from_mbit(5), Seconds(0.02), Seconds(0.004), 0.1, reorder_by=Seconds(0.002)
    )
    flow = CrossTraffic("a", "b", Seconds(1), Seconds(3), 5, "cubic", "udp", Rate.from_mbit(20))
    network = Network("x", as_hosts("ab"), both("a", "b", SPEC), changes=(change,), cross=(flow,))
    stretched = dilated(network, 2)
    assert stretched.changes == (dilated_change(change, 2),)
    assert stretched.cross == (CrossTraffic("a", "b", Seconds(2), Seconds(6), 5, "cubic", "udp", Rate.from_mbit(10)),)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_dilated_and_back(name: str) -> None:
    network = preset(name)
    for before, after in zip(network.links, dilated(network, 8).links, strict=True):
        assert float(after.spec.mean_rate) * 8 == pytest.approx(float(before.spec.mean_rate))
        assert float(after.spec.delay) == pytest.approx(8 * float(before.spec.delay))
    assert dilated(network, 1) is network


@pytest.mark.parametrize("factor", [0, -2, math.nan, math.inf, 0.5, 1e9, "four", None, True])
def test_a_bad_factor_names_the_setting_and_the_range(factor: object) -> None:
    with pytest.raises(ConfigError, match=rf"^net\.dilate: .* from 1 .* to {LARGEST:g}.*write for example 4"):
        checked_factor(factor, "net.dilate")  # type: ignore[arg-type]


def test_a_delay_that_becomes_too_long_names_the_factor_and_the_network() -> None:
    network = Network("moon", as_hosts("ab"), both("a", "b", LinkSpec(delay=Seconds(1.3))))
    with pytest.raises(ConfigError, match="dilate: 64 is too much for moon: delay"):
        dilated(network, 64)


def test_a_network_file_may_ask_for_dilated_time() -> None:
    text = 'hosts = 2\n{}[access]\nrate = "100mbit"\n'
    network = parse_network(text.format("dilate = 4\n"))
    assert network.dilate == 4
    assert network.links == parse_network(text.format("")).links  # its values stay undilated
    with pytest.raises(ConfigError, match=r"mine\.dilate: must be a number from 1"):
        parse_network(text.format("dilate = 0\n"), "mine")
