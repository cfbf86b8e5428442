"""Units: arithmetic gives the right unit, and text is parsed strictly."""

from __future__ import annotations

import math

import pytest

from gradwire.errors import ConfigError
from gradwire.units import Bytes, Rate, Seconds, parse_bytes, parse_fraction, parse_rate, parse_seconds


def test_rate_times_time_is_bytes_and_back() -> None:
    rate = Rate.from_mbit(80)
    assert rate * Seconds(2) == Bytes(20_000_000)
    assert isinstance(rate * Seconds(2), Bytes)
    assert Bytes(20_000_000) / rate == Seconds(2)
    assert Bytes(20_000_000) / Seconds(2) == rate
    assert Bytes(10) / 4 == 2.5
    assert Bytes(1) / Rate(0) == math.inf


def test_text_parses() -> None:
    assert parse_rate("200mbit").mbit == 200
    assert parse_rate(1000) == parse_rate("1gbit/s")
    assert parse_rate("unlimited") == math.inf
    assert parse_seconds("20ms") == Seconds(0.02)
    assert parse_bytes("64KiB") == 65536
    assert parse_fraction("1%") == 0.01


@pytest.mark.parametrize(
    ("parse", "text"),
    [(parse_rate, "fast"), (parse_rate, "3furlong"), (parse_seconds, "20 parsec"), (parse_bytes, "1 bit"),
     (parse_fraction, "120%"), (parse_fraction, "1ms")],
)  # fmt: skip
def test_errors_name_the_setting(parse, text: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=r"link\.rate"):
        parse(text, setting="link.rate")


def test_units_are_printed_with_a_readable_scale() -> None:
    assert str(Bytes(1_500_000)) == "1.5 MB"
    assert str(Rate.from_mbit(1500)) == "1.5 Gbit/s"
    assert str(Seconds(0.0021)) == "2.1 ms"
