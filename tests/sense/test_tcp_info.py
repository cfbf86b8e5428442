"""TCP_INFO: any kernel's struct is parsed, and only what the path limited counts as its bandwidth."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from gradwire.sense.slow_start import INITIAL_WINDOW, longest_slow_start, slow_start_seconds, window_after_idle
from gradwire.sense.tcp_info import TcpInfo, parse
from gradwire.sense.tcp_links import TcpLinks, path_rate


def packed(length: int, **fields: int) -> bytes:
    """A struct tcp_info of some kernel's length."""
    places = {
        "flags": (7, "B"), "timeout": (8, "I"), "mss": (16, "I"), "idle": (44, "I"), "rtt": (68, "I"),
        "threshold": (76, "I"), "window": (80, "I"), "total": (100, "I"), "acked": (120, "Q"), "least": (148, "I"),
        "rate": (160, "Q"), "busy": (168, "Q"), "receiver": (176, "Q"), "buffer": (184, "Q"), "sent": (200, "Q"),
        "resent": (208, "Q"),
    }  # fmt: skip
    data = bytearray(280)
    data[0] = 1  # established
    for name, value in fields.items():
        offset, kind = places[name]
        struct.pack_into(f"={kind}", data, offset, value)
    return bytes(data[:length])


FIELDS = {
    "flags": 1, "timeout": 204_000, "mss": 1448, "idle": 300, "rtt": 81_000, "threshold": 50, "window": 40, "total": 3,
    "acked": 10_000_000, "least": 80_000, "rate": 2_500_000, "busy": 4_000_000, "receiver": 100_000, "buffer": 50_000,
    "sent": 10_004_344, "resent": 4_344,
}  # fmt: skip


def test_the_fields_of_a_present_kernel() -> None:
    info = parse(packed(248, **FIELDS))
    assert info is not None
    assert (info.rtt, info.min_rtt, info.timeout, info.idle) == pytest.approx((0.081, 0.08, 0.204, 0.3))
    assert (info.window, info.threshold, info.mss) == (40 * 1448, 50 * 1448, 1448)
    assert (info.delivery_rate, info.app_limited, info.slow_start) == (2.5e6, True, True)
    assert (info.acked, info.sent, info.resent) == (10_000_000, 10_004_344, 4_344)
    assert (info.busy, info.window_limited) == pytest.approx((4.0, 0.15))


@pytest.mark.parametrize("length", [104, 136, 160, 168, 192, 200, 232])
def test_an_older_kernel_reports_less(length: int) -> None:
    info = parse(packed(length, **FIELDS))
    assert info is not None
    assert info.rtt == pytest.approx(0.081)
    assert info.min_rtt == pytest.approx(0.08 if length >= 152 else 0.081)
    assert info.delivery_rate == (2.5e6 if length >= 168 else 0.0)
    assert info.resent == 3 * 1448 or length >= 216


def test_no_tcp_info_at_all() -> None:
    assert parse(b"") is None
    assert parse(bytes(60)) is None
    assert parse(bytes(248)) is None, "a connection that is not established"


def test_bbr_is_past_slow_start_when_its_rate_stops_growing() -> None:
    def answer(gain: float) -> bytes:
        return struct.pack("=IIIII", 5_000_000, 0, 80_000, int(gain * 256), 512)

    startup, later = parse(packed(248), answer(2.89)), parse(packed(248), answer(1.25))
    assert startup is not None
    assert later is not None
    assert (startup.bbr, startup.slow_start, startup.bbr_rate) == (True, True, 0.0)
    assert (later.bbr, later.slow_start, later.bbr_rate) == (True, False, 5e6)


IDLE = TcpInfo(
    rtt=0.08, min_rtt=0.08, timeout=0.28, mss=1448, window=400_000, threshold=300_000.0, idle=0.0,
    delivery_rate=1e6, acked=0, sent=0, busy=0.0,
)  # fmt: skip
SENT = replace(IDLE, acked=4_000_000, sent=4_000_000, busy=1.5, delivery_rate=2.6e6)


def test_a_rate_that_the_path_limited_is_its_bandwidth() -> None:
    assert path_rate(SENT, IDLE) == 2.6e6


@pytest.mark.parametrize(
    "change",
    [
        {"app_limited": True},
        {"threshold": float("inf")},
        {"delivery_rate": IDLE.delivery_rate},
        {"acked": 600_000},
        {"acked": 0},
    ],
    ids=["the sender had no more", "slow start", "an old sample", "a window or two", "nothing was sent"],
)
def test_other_rates_are_lower_bounds(change: dict[str, Any]) -> None:
    assert path_rate(replace(SENT, **change), IDLE) is None


def test_slow_start_into_a_full_queue_or_a_full_receive_window_is_the_path() -> None:
    growing = replace(SENT, threshold=float("inf"))
    assert path_rate(replace(growing, rtt=0.15), IDLE) == 2.6e6
    assert path_rate(replace(growing, window_limited=1.0), IDLE) == 2.6e6


def test_links_report_bandwidth_once_loss_and_restart() -> None:
    readings = [{7: IDLE}, {7: replace(SENT, resent=40_000, idle=1.0)}, {7: replace(SENT, resent=40_000, idle=2.0)}]
    links = TcpLinks(iter(readings).__next__)
    assert links.links()[7].bandwidth is None
    first = links.links()[7]
    assert (first.bandwidth, first.rtprop) == (2.6e6, 0.08)
    assert first.loss == pytest.approx(0.01)
    # After three timeouts the window is an eighth; 208 kB are missing to 2.6 MB/s x 80 ms.
    assert first.restart == pytest.approx(slow_start_seconds(2.6e6 * 0.08, 0.08, 2.6e6, 50_000))
    assert first.restart > 0.05
    assert links.moved() == {7: (4_000_000.0, 1.5)}
    again = links.links()[7]
    assert again.bandwidth is None, "the kernel repeats its last rate while nothing is sent"
    assert again.floor == 2.6e6


def test_without_the_setting_or_a_pause_nothing_restarts() -> None:
    for info, restarts in ((replace(SENT, idle=1.0), False), (replace(SENT, idle=0.1), True)):
        links = TcpLinks(iter([{1: IDLE}, {1: info}]).__next__, restarts)
        links.links()
        assert links.links()[1].restart == 0.0


def test_slow_start_costs_round_trips_until_the_path_is_full() -> None:
    rate, trip = 12.5e6, 0.08  # 1 MB in flight
    assert slow_start_seconds(10_000, trip, rate) == 0.0, "what fits the first window needs no second"
    extra = slow_start_seconds(50e6, trip, rate)
    # Seven windows from 14.5 kB to 0.93 MB are below 1 MB; together they carry 1.84 MB in 7 round trips.
    assert extra == pytest.approx(7 * trip - 127 * INITIAL_WINDOW / rate)
    assert slow_start_seconds(50e6, trip, rate, window=1e6) == 0.0
    assert slow_start_seconds(100_000, trip, rate) < extra
    assert longest_slow_start(50e6, trip) >= extra


def test_a_pause_halves_the_window_once_per_timeout() -> None:
    assert window_after_idle(400_000, 0.1, 0.28) == 400_000
    assert window_after_idle(400_000, 0.3, 0.28) == 200_000
    assert window_after_idle(400_000, 60.0, 0.28) == INITIAL_WINDOW
    assert window_after_idle(5_000, 60.0, 0.28) == 5_000
