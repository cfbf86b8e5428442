"""Network changes: detected soon, without false alarms, and estimates of the old network are dropped."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import pytest

from gradwire.sense.ack_stats import AckStats
from gradwire.sense.change_detector import ChangeDetector, StepSample
from gradwire.sense.clock_sync import ClockSync
from gradwire.sense.estimator import Estimator, StepObservation
from gradwire.types import Acks, LinkView, StepFacts, View
from gradwire.units import Rate

FAST, SLOW = float(Rate.from_mbit(1000)), float(Rate.from_mbit(20))
# What a step of an 11 M gradient sends between four ranks: off, int8, topk:0.1+int8, topk:0.01+int8.
OFF, INT8, TOPK_10, TOPK_1 = 67_000_000, 17_000_000, 2_500_000, 300_000


@dataclass
class Steps:
    """Feeds an estimator with steps of a network whose rate and round trip may change."""

    noise: float = 0.0
    overhead: float = 0.003
    trip: float = 0.002
    seed: int = 1
    now: float = 1000.0
    estimator: Estimator = field(default_factory=Estimator)
    peer: ClockSync = field(default_factory=ClockSync)
    views: list[View] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)

    def run(self, rate: float, sizes: Iterable[int], hops: int = 2) -> list[float]:
        """The estimated bandwidth after each step."""
        estimates = []
        for wire in sizes:
            busy = (wire / rate + hops * self.trip / 2 + self.overhead) * self._dice.lognormvariate(0.0, self.noise)
            self.now += 0.1 + busy
            self.peer.take(self.now - self.trip, self.now, self.now, self.now)
            facts = StepFacts(seconds=0.1 + busy, busy=busy, wire_bytes=wire, hops=hops)
            self.views.append(self.estimator.update([StepObservation(facts, self.now)] * 2, [self.peer], self.now))
            estimates.append(self.views[-1].group.bandwidth or 0.0)
        return estimates

    @property
    def changes(self) -> int:
        return self.views[-1].changes


def near(rate: float, share: float = 0.3) -> Callable[[float], bool]:
    return lambda estimate: abs(estimate - rate) <= share * rate


def cycle(sizes: list[int], count: int) -> list[int]:
    return list(itertools.islice(itertools.cycle(sizes), count))


# Sizes before the change, at it (three steps: a single one is no change, and a decision is in force two steps after
# what it is based on), and after it.
SIZES = {
    "always whole": ([OFF], [OFF], [OFF]),
    "int8 before, sparse after": ([INT8], [INT8], [TOPK_10]),
    "two sizes before, sparse after": ([INT8, INT8, OFF], [OFF], [TOPK_10]),
    "whole before, very sparse after": ([OFF, INT8], [OFF], [TOPK_1]),
    "the level falls at the very step": ([OFF], [INT8], [TOPK_10]),
}


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
def test_a_drop_is_detected_within_three_steps_whatever_the_sizes(
    sizes: tuple[list[int], list[int], list[int]], noise: float
) -> None:
    for seed in range(5):
        steps = Steps(noise, seed=seed)
        before, at, after = sizes
        assert near(FAST)(steps.run(FAST, cycle(before, 20))[-1])
        estimates = steps.run(SLOW, cycle(at, 3) + cycle(after, 20))
        assert all(map(near(SLOW), estimates[2:])), [f"{rate / 125e3:.0f}" for rate in estimates]
        assert steps.changes == 1


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("sizes", [([INT8], [INT8]), ([TOPK_10], [INT8]), ([TOPK_1], [TOPK_10])])
def test_a_rise_is_detected_within_ten_steps(sizes: tuple[list[int], list[int]], noise: float) -> None:
    """Three steps at the old size, until a decision is in force; then at one that the estimate allows."""
    slow, fast = sizes
    for seed in range(5):
        steps = Steps(noise, seed=seed, overhead=0.001)
        assert near(SLOW)(steps.run(SLOW, cycle(slow, 20))[-1])
        estimates = steps.run(FAST, cycle(slow, 3) + cycle(fast, 20))
        assert all(map(near(FAST), estimates[9:])), [f"{rate / 125e3:.0f}" for rate in estimates]
        assert steps.changes == 1


@pytest.mark.parametrize("noise", [0.1, 0.2])
@pytest.mark.parametrize("sizes", [[OFF], [TOPK_1], [OFF, INT8], [INT8] * 5 + [TOPK_1] * 5])
def test_noise_is_not_a_change(sizes: list[int], noise: float) -> None:
    for seed in range(5):
        steps = Steps(noise, seed=seed)
        steps.run(FAST, cycle(sizes, 400))
        assert steps.changes == 0


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_one_disturbed_step_is_not_a_change(noise: float) -> None:
    steps = Steps(noise)
    for _ in range(10):
        steps.run(FAST, cycle([OFF], 20))
        steps.run(FAST / 30, [OFF])
    assert steps.changes == 0


@pytest.mark.parametrize("factor", [0.98, 1 / 0.98])
def test_a_drift_is_followed(factor: float) -> None:
    """Two per cent a step, over 150 steps, while the level alternates between two sizes."""
    steps, rate = Steps(0.05), FAST if factor < 1 else SLOW
    steps.run(rate, cycle([INT8], 20))
    for size in cycle([INT8] * 10 + [TOPK_10] * 10, 150):
        rate *= factor
        estimate = steps.run(rate, [size])[-1]
        assert near(rate, 0.5)(estimate), f"{estimate / 125e3:.0f} of {rate / 125e3:.0f}"


def test_a_longer_round_trip_under_small_steps_is_not_a_slower_network() -> None:
    """100 kB on a path of 1 Gbit/s take latency only, also when the route becomes longer."""
    steps = Steps(0.05, trip=0.02)
    steps.run(FAST, cycle([OFF], 10))
    steps.run(FAST, cycle([100_000], 20))
    steps.trip = 0.1
    assert min(steps.run(FAST, cycle([100_000], 30))) >= 0.7 * FAST


def test_the_best_rate_before_a_change_is_dropped() -> None:
    steps = Steps()
    steps.run(FAST, cycle([INT8], 10))
    steps.run(SLOW, cycle([TOPK_10], 4))
    best = steps.views[-1].group.best
    assert best is not None
    assert near(SLOW)(best)


def test_acknowledged_rates_of_the_old_network_are_dropped() -> None:
    acknowledged, view = AckStats(), View(LinkView(rtprop=0.01, bandwidth=FAST))
    for now in range(4):
        acknowledged.update(view, 0, {}, [Acks(0.01, FAST)], now=float(now))
    acknowledged.update(view, 0, {}, [Acks(0.01, SLOW)], now=4.0)
    after = acknowledged.update(replace(view, changes=1), 0, {}, [Acks(0.01, SLOW)], now=4.1)
    assert after.group.bandwidth == after.group.best == SLOW
    assert after.changes == 1


def test_a_change_keeps_the_steps_of_the_new_network() -> None:
    detector = ChangeDetector()
    old, new = StepSample(INT8, 0.14, 0.0), StepSample(INT8, 6.8, 0.0)
    assert [detector.take(old) for _ in range(5)] == [[]] * 5
    assert detector.take(new) == []
    assert detector.take(new) == [new, new]
    assert detector.take(new) == []


def test_times_that_one_network_cannot_have_are_a_change_although_sizes_differ() -> None:
    """A quarter of the bytes took eight times as long."""
    detector = ChangeDetector()
    for _ in range(5):
        detector.take(StepSample(OFF, 0.54, 0.0))
    detector.take(StepSample(INT8, 4.3, 0.0))
    assert detector.take(StepSample(INT8, 4.3, 0.0))
