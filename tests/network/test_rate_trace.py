"""Traces: a link has the rates of the file."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import ConfigError
from gradwire.network import RateTrace, load_trace
from gradwire.network.rate_trace import MAHIMAHI_BYTES, parse_trace, synthetic_trace
from gradwire.units import Rate


def test_seconds_and_mbit_hold_until_the_next_line() -> None:
    trace = parse_trace("10\t8\n11\t16\n13\t4\n")
    assert trace.times == (0, 1, 3)
    assert trace.rate_at(0.5) == Rate.from_mbit(8)
    assert trace.rate_at(2.9) == Rate.from_mbit(16)
    assert trace.period == pytest.approx(4.5)
    assert trace.rate_at(4.6) == Rate.from_mbit(8)


@given(st.lists(st.integers(1, 300), min_size=1, max_size=200))
def test_mahimahi_carries_one_packet_for_each_line(stamps: list[int]) -> None:
    trace = parse_trace("\n".join(map(str, sorted(stamps))))
    assert trace.mean_rate * trace.period == pytest.approx(len(stamps) * MAHIMAHI_BYTES)
    assert trace.period == max(stamps) / 1000


def test_gzip_reads_like_plain(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.up", tmp_path / "a.up.gz"
    plain.write_text("1\n5\n9\n")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert load_trace(plain) == load_trace(packed)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("1 2 3", "one column"),
        ("1\n2 3", "one column"),
        ("5\n3", "decrease"),
        ("a\tb", "could not convert"),
        ("0\t1\n0\t2", "increase"),
        ("0\t-1", "negative"),
        ("0\t0", "all zero"),
        ("0", "longer than 0"),
    ],
)
def test_a_broken_trace_says_why(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_trace(text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"link.trace: cannot read .*nowhere"):
        load_trace(tmp_path / "nowhere", "link.trace")


def test_a_truncated_gzip_is_a_config_error(tmp_path: Path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"1\n" * 1000)[:-20])
    with pytest.raises(ConfigError, match="cannot read"):
        load_trace(path)


def test_a_synthetic_trace_has_the_mean_and_is_the_same_again() -> None:
    trace = synthetic_trace(30, 0.5, 2.0, seed=3, seconds=2000)
    assert trace.mean_rate.mbit == pytest.approx(30, rel=0.1)
    assert trace == synthetic_trace(30, 0.5, 2.0, seed=3, seconds=2000)


def test_steps_must_start_at_zero() -> None:
    with pytest.raises(ConfigError, match="start at 0"):
        RateTrace((1.0,), (1.0,), 2.0)


@pytest.mark.parametrize("text", ["inf\n", "1\nnan\n", "0 inf\n1 2\n"])
def test_numbers_that_are_not_finite_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not finite"):
        parse_trace(text)


def test_a_corrupt_archive_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.gz"
    path.write_bytes(gzip.compress(b"1\n2\n" * 1000)[:-20] + b"x" * 20)
    with pytest.raises(ConfigError, match=r"broken\.gz"):
        load_trace(path)
