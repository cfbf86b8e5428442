"""An impossible LinkSpec is refused with the name of the value."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradwire.errors import ConfigError
from gradwire.network import Burst, LinkSpec
from gradwire.units import Bytes, Rate, Seconds


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"rate": Rate(0)}, "rate"),
        ({"rate": Rate(-1)}, "rate"),
        ({"rate": Rate(math.nan)}, "rate"),
        ({"delay": Seconds(-0.001)}, "delay"),
        ({"delay": Seconds(math.nan)}, "delay"),
        ({"jitter": Seconds(100)}, "jitter"),
        ({"loss": -0.1}, "loss"),
        ({"loss": 1.0}, "loss"),
        ({"reorder": 1.5}, "reorder"),
        ({"reorder_by": Seconds(-1)}, "reorder_by"),
        ({"duplicate": -0.1}, "duplicate"),
        ({"mtu": 100}, "mtu"),
        ({"queue": Bytes(1000)}, "queue"),
    ],
)
def test_impossible_values_are_refused_by_name(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f"^{named}:"):
        LinkSpec(**values)


def test_a_burst_that_never_ends_is_refused() -> None:
    with pytest.raises(ConfigError, match="leave"):
        Burst(0.1, 0.0)


def test_mean_loss_joins_bursts_and_single_losses() -> None:
    spec = LinkSpec(loss=0.1, burst=Burst(0.1, 0.3, 0.8))
    assert spec.mean_loss == pytest.approx(1 - 0.9 * (1 - 0.8 * 0.25))


def test_reordering_and_duplication_are_in_a_links_description() -> None:
    spec = LinkSpec(Rate.from_mbit(100), reorder=0.01, reorder_by=Seconds(0.002), duplicate=0.001)
    assert str(spec) == "100 Mbit/s, 1.00% reordered by 2 ms, 0.10% duplicated"


def test_the_queue_defaults_to_fifty_milliseconds() -> None:
    assert LinkSpec(Rate.from_mbit(100)).queue_bytes == pytest.approx(625_000)
    assert LinkSpec(Rate.from_mbit(1)).queue_bytes == 65536
    assert math.isinf(LinkSpec().queue_bytes)
    assert LinkSpec(queue=Bytes(5000)).queue_bytes == 5000
