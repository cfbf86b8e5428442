"""A grid of steady networks: what is believed is right or a true lower bound, whatever a step sends.

A step is an exchange of two phases between four ranks, over connections of its own for each phase, as over gloo. Its
operations take latency, slow start after the pause for compute, bytes at the path's rate, losses, noise and waits.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from gradwire.sense.ack_stats import AckMeter, AckStats, restarts
from gradwire.sense.clock_sync import ClockSync
from gradwire.sense.estimator import Estimator, StepObservation
from gradwire.sense.tcp_links import TcpLinks
from gradwire.types import LinkView, StepFacts, View
from gradwire.units import Rate
from tests.sense.flows import Flow, saturating

pytestmark = pytest.mark.slow  # seconds each; the fast lane leaves them out

RANKS = 4
PHASES = 2
# What a rank sends in a step of an 11 M gradient: int8, int4, topk:0.1+int8, topk:0.01+int8; and of a small model.
SIZES = {"int8": 17_000_000, "int4": 8_500_000, "sparse": 2_500_000, "very sparse": 300_000, "small": 60_000}
GRID = [
    (mbit, trip, loss)
    for mbit in (10, 50, 100, 300, 1000)
    for trip in (0.001, 0.02, 0.08, 0.15)
    for loss in (0.0, 0.01)
]


@dataclass
class World:
    """One rank's connections and what it and rank 0 believe; all ranks are alike."""

    mbit: float
    trip: float
    loss: float
    compute: float = 0.4
    noise: float = 0.05
    overhead: float = 0.003
    seed: int = 1
    kernel: bool = True
    now: float = 1000.0
    views: list[View] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.estimator, self.stats, self.meter, self.peer = Estimator(), AckStats(), AckMeter(), ClockSync()
        self.flows = [Flow(0.0, self.trip, self.loss, 0.0, self.rng) for _ in range(PHASES * (RANKS - 1))]
        self.links = TcpLinks(lambda: {n: replace(f.info, idle=self.compute) for n, f in enumerate(self.flows)})
        self.change(self.mbit)

    def change(self, mbit: float) -> None:
        self.mbit = mbit
        share = float(Rate.from_mbit(mbit)) / (RANKS - 1)
        self.queue = max(share * self.trip, 64_000.0)
        for flow in self.flows:
            flow.rate, flow.queue = share, self.queue

    @property
    def truth(self) -> float:
        return (RANKS - 1) * saturating(self.flows[0].rate, self.trip, self.loss, self.queue)

    def step(self, wire: int) -> View:
        began, busy = self.now + self.compute, 0.0
        each = wire // len(self.flows)
        for phase in range(PHASES):
            flows = self.flows[phase * (RANKS - 1) : (phase + 1) * (RANKS - 1)]
            # A flow's last acknowledgement is half a round trip later than the data.
            busy += max(flow.send(each, began + busy) for flow in flows) - self.trip / 2
        busy = busy * self.rng.lognormvariate(0.0, self.noise) + self.overhead * self.rng.expovariate(1.0)
        late = [0.02 * self.rng.random() for _ in range(RANKS)]
        self.now = began + busy
        self.peer.take(self.now - self.trip, self.now, self.now, self.now + self.rng.expovariate(1.0) * 0.001)
        seen = [
            StepObservation(StepFacts(self.compute + busy, busy, busy + max(late) - one, wire, PHASES), self.now + one)
            for one in late
        ]
        view = self.estimator.update(seen, [self.peer], self.now)
        if self.kernel:
            acks = self.meter.take(self.links.links(), self.links.moved(), busy, in_turns=True)
            view = self.stats.update(view, 0, {}, [acks] * RANKS, self.now)
            self.estimator.slow_start = restarts([acks])
        self.views.append(view)
        return view


def right(link: LinkView, truth: float) -> bool:
    if link.bandwidth is not None:
        return abs(link.bandwidth - truth) <= 0.3 * truth
    return link.floor <= 1.1 * truth


def wrong_steps(world: World, sizes: Callable[[int], int], steps: int = 60) -> list[float]:
    """What was believed at the steps from the twentieth on at which it was wrong."""
    truth = world.truth
    views = [world.step(sizes(step)) for step in range(steps)]
    return [(view.group.bandwidth or view.group.floor) / truth for view in views[20:] if not right(view.group, truth)]


@pytest.mark.parametrize("kernel", [True, False], ids=["TCP_INFO", "steps only"])
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
def test_right_or_a_true_lower_bound(size: int, kernel: bool) -> None:
    bad = []
    for mbit, trip, loss in GRID:
        wrong = wrong_steps(World(mbit, trip, loss, kernel=kernel), lambda _: size)
        if len(wrong) > 4:
            bad.append((mbit, trip, loss, len(wrong), round(sorted(wrong)[len(wrong) // 2], 2)))
    assert not bad, "\n".join(map(str, bad))


@pytest.mark.parametrize("kernel", [True, False], ids=["TCP_INFO", "steps only"])
def test_right_while_levels_change(kernel: bool) -> None:
    """A controller uses several levels; the largest is seldom sent."""
    order = [SIZES["int4"]] * 6 + [SIZES["sparse"]] * 6 + [SIZES["very sparse"]] * 6
    bad = []
    for mbit, trip, loss in GRID:
        wrong = wrong_steps(World(mbit, trip, loss, kernel=kernel), lambda step: order[step % len(order)])
        if len(wrong) > 4:
            bad.append((mbit, trip, loss, len(wrong), round(sorted(wrong)[len(wrong) // 2], 2)))
    assert not bad, "\n".join(map(str, bad))


# Rates before and after, round trip, bytes of a step: enough to tell.
CHANGES = [(400, 100, 0.001), (200, 20, 0.001), (100, 10, 0.02), (300, 50, 0.02), (80, 10, 0.08), (1000, 100, 0.001)]


@pytest.mark.parametrize("kernel", [True, False], ids=["TCP_INFO", "steps only"])
@pytest.mark.parametrize(("high", "low", "trip"), CHANGES)
def test_a_fall_is_believed_within_three_steps_and_a_rise_within_ten(
    high: float, low: float, trip: float, kernel: bool
) -> None:
    for seed in range(3):
        world = World(high, trip, 0.0, kernel=kernel, seed=seed)
        size = SIZES["int8"]
        for _ in range(25):
            view = world.step(size)
        assert right(view.group, world.truth), f"before: {view.group.bandwidth} of {world.truth}"
        for mbit, within in ((low, 3), (high, 10)):
            world.change(mbit)
            views = [world.step(size) for _ in range(20)]
            believed = [(view.group.bandwidth or view.group.floor) / world.truth for view in views]
            assert all(right(view.group, world.truth) for view in views[within:]), [round(one, 2) for one in believed]


def test_levels_that_fall_with_the_rate_are_sensed_too() -> None:
    """As a controller answers a fall: three steps at the old size, then far smaller ones."""
    for seed in range(3):
        world = World(300, 0.02, 0.0, seed=seed)
        for _ in range(25):
            world.step(SIZES["int8"])
        world.change(20)
        views = [world.step(SIZES["int8"]) for _ in range(3)] + [world.step(SIZES["sparse"]) for _ in range(20)]
        wrong = [view for view in views[3:] if not right(view.group, world.truth)]
        assert len(wrong) <= 2, [round((view.group.bandwidth or 0) / world.truth, 2) for view in views]
