"""Estimator: filters, round trips across clocks, and a bandwidth without the effect of stragglers and latency."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.sense.clock_sync import ClockSync
from gradwire.sense.estimator import Estimator, StepObservation
from gradwire.sense.filters import Ewma, WindowedMax, WindowedMin
from gradwire.types import StepFacts

START = 5_000.0  # the zero of a clock is arbitrary


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(-10, 10)), min_size=1, max_size=60))
def test_windowed_filters_equal_their_definition(gaps: list[tuple[float, float]]) -> None:
    least, most = WindowedMin(5.0), WindowedMax(5.0)
    now, seen = START, []
    for gap, value in gaps:
        now += gap
        seen.append((now, value))
        inside = [v for at, v in seen if at >= now - 5.0]
        assert least.add(value, now) == min(inside)
        assert most.add(value, now) == max(inside)


def test_an_average_begins_with_its_first_sample() -> None:
    average = Ewma(0.25)
    assert average.add(8.0) == 8.0
    assert average.add(0.0) == 6.0


@given(offset=st.floats(-1e6, 1e6), there=st.floats(0.001, 0.2), back=st.floats(0.001, 0.2), hold=st.floats(0, 5))
def test_round_trip_and_offset_need_no_common_clock(offset: float, there: float, back: float, hold: float) -> None:
    peer = ClockSync()
    t1 = START
    t2 = t1 + there + offset
    t3 = t2 + hold
    t4 = t1 + there + hold + back
    peer.take(t1, t2, t3, t4)
    assert peer.rtprop == pytest.approx(there + back, abs=1e-6)
    assert peer.offset == pytest.approx(offset, abs=abs(there - back) / 2 + 1e-6)


def test_a_clock_that_jumps_is_ignored() -> None:
    peer = ClockSync()
    peer.take(START, START, START + 0.01, START + 0.03)
    peer.take(START + 9, START + 9, START + 4_000, START + 9.02)  # the peer's clock jumped between t2 and t3
    assert peer.rtprop == pytest.approx(0.02)


def test_round_trips_are_dropped_after_the_window() -> None:
    peer = ClockSync()
    peer.take(START, START, START, START + 0.01)
    peer.take(START + 100, START + 100, START + 100, START + 100.2)
    assert peer.rtprop == pytest.approx(0.2)


def peers(trip: float, now: float) -> list[ClockSync]:
    peer = ClockSync()
    peer.take(now - trip, now, now, now)
    return [peer]


def step(
    rate: float, trip: float, wire: int, hops: int = 2, late: tuple[float, ...] = (0.0, 0.0)
) -> list[StepObservation]:
    """A step as measured by ranks that become ready `late` seconds after the first."""
    last = max(late)
    own = [wire / rate + hops * trip / 2 + (last - lateness) for lateness in late]
    facts = [StepFacts(seconds=busy + 0.1, busy=busy, wire_bytes=wire, hops=hops) for busy in own]
    return [StepObservation(f, START + lateness) for f, lateness in zip(facts, late, strict=True)]


@pytest.mark.parametrize("late", [(0.0, 0.0), (0.0, 0.7), (0.3, 0.0, 0.1), (0.0, 5.0)])
def test_waiting_for_a_straggler_is_not_network_time(late: tuple[float, ...]) -> None:
    estimator = Estimator()
    for turn in range(3):
        view = estimator.update(step(12.5e6, 0.02, 4_000_000, late=late), peers(0.02, START + turn), START + turn)
    assert view.group.bandwidth == pytest.approx(12.5e6, rel=0.01)
    assert view.group.rtprop == pytest.approx(0.02)
    assert view.group.confidence > 0.8


def test_ranks_whose_clocks_are_not_known_are_not_compared() -> None:
    """Uptimes of different machines differ by days, and without an offset from pulses they cannot be compared."""
    estimator = Estimator()
    for turn in range(3):
        seen = [
            StepObservation(one.facts, START if rank == 0 else None)
            for rank, one in enumerate(step(12.5e6, 0.02, 4_000_000))
        ]
        view = estimator.update(seen, [ClockSync()], START + turn)
    assert view.group.bandwidth == pytest.approx(12.5e6, rel=0.1)


def test_a_change_is_detected_at_its_second_step_and_an_outlier_is_ignored() -> None:
    estimator = Estimator()
    rates = []
    for turn, rate in enumerate([10e6, 10e6, 10e6, 1e6, 10e6, 10e6, 2e6, 2e6]):
        view = estimator.update(step(rate, 0.01, 5_000_000), peers(0.01, START + turn), START + turn)
        rates.append(round((view.group.bandwidth or 0) / 1e6))
    assert rates == [10, 10, 10, 10, 10, 10, 10, 2]


def test_small_transfers_never_lower_the_rate() -> None:
    """100 kB over a 1 Gbit/s path of 100 ms: all latency. The hops of a ring must not look like a slow link."""
    estimator = Estimator()
    for turn in range(3):
        estimator.update(step(125e6, 0.1, 40_000_000), peers(0.1, START + turn), START + turn)
    for turn in range(3, 30):
        view = estimator.update(step(125e6, 0.1, 100_000), peers(0.1, START + turn), START + turn)
    assert (view.group.bandwidth or 0.0) >= 125e6 * 0.99


def test_time_that_bytes_do_not_explain_is_not_bandwidth() -> None:
    """A busy machine: every exchange takes 20 ms of scheduling and wake-ups, whatever its size, on a fast link."""
    estimator = Estimator()
    rates = []
    for turn in range(20):
        wire = 400_000 if turn < 5 else 40_000
        facts = StepFacts(seconds=0.1, busy=0.02 + wire / 125e6, wire_bytes=wire, hops=2)
        view = estimator.update([StepObservation(facts, START)] * 3, peers(0.0005, START + turn), START + turn)
        rates.append(view.group.bandwidth or 0.0)
    assert rates[4] < 25e6, "one size alone cannot separate them"
    assert rates[-1] > 60e6, "a second one can"
    assert view.group.overhead == pytest.approx(0.02, rel=0.15)


def test_two_sizes_give_both_latency_and_bandwidth() -> None:
    estimator = Estimator()
    for turn in range(16):
        wire = 4_000_000 if turn % 2 else 1_000_000
        facts = StepFacts(seconds=1.0, busy=0.05 + wire / 12.5e6, wire_bytes=wire, hops=2)
        view = estimator.update([StepObservation(facts, START)], peers(0.001, START + turn), START + turn)
    assert view.group.bandwidth == pytest.approx(12.5e6, rel=0.05)
    assert view.group.overhead == pytest.approx(0.05, rel=0.1)


def test_unknown_values_of_a_view_are_none() -> None:
    view = Estimator().update([], [ClockSync()], START)
    assert view.group.bandwidth is None
    assert view.group.rtprop is None
    assert view.group.confidence == 0.0


def test_small_exchanges_that_vary_do_not_make_a_slow_network_look_fast() -> None:
    """100 ms of wake-ups that vary by 30 ms exceed the time of 0.4 MB; 20 MB measured 200 Mbit/s before."""
    noise, estimator, now = random.Random(7), Estimator(), START
    rates = []
    for step in range(60):
        wire = 20_000_000 if step < 6 else 400_000
        busy = 0.1 + noise.uniform(-0.03, 0.03) + wire / 25e6
        now += 1.0
        facts = StepFacts(seconds=1.0, busy=busy, wire_bytes=wire, hops=2)
        rates.append(estimator.update([StepObservation(facts, now)], [], now).group.bandwidth)
    assert all(12e6 < rate < 50e6 for rate in rates if rate is not None)
    assert estimator.view(now).group.age > 0, "nothing new was learnt, and the View says so"
