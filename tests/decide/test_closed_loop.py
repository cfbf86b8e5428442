"""Auto and the estimator together on a busy machine: exchanges cost scheduling and wake-ups that vary.

Predictions are wrong here by design: the model does not know `turns` and `noise`, and the estimator gets only what
ranks measure, two steps late.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections import deque
from dataclasses import dataclass, field, replace

import pytest

from gradwire.decide.auto import Auto
from gradwire.decide.base import Controller, Job
from gradwire.decide.ladder import LADDER, index_of
from gradwire.decide.price import PriceList
from gradwire.decide.summable_controller import SummableController
from gradwire.exchange.select import FootprintTable
from gradwire.level import Level
from gradwire.sense.clock_sync import ClockSync
from gradwire.sense.estimator import Estimator, StepObservation
from gradwire.types import Bucket, Decision, ParameterSlice, StepFacts, View
from gradwire.units import Rate

pytestmark = pytest.mark.slow  # seconds each; the fast lane leaves them out

RANKS = 4
NUMEL = 2_800_000
BUCKETS = tuple(
    Bucket(i, 0, NUMEL, 4, (ParameterSlice(f"p{i}", 0, (500, NUMEL // 500), NUMEL),), i == 3) for i in range(4)
)
# Prices without a sample, any of which is allowed here; steps until warm-up has ended.
PRICES = PriceList(tuple(rung.level.ratio for rung in LADDER if rung.level.sparse))
ANY = 9.0
WARM = 110
JOB = Job(RANKS, BUCKETS, FootprintTable(RANKS))


@dataclass
class Machine:
    """A step's time: compute, then the time of the network, the codec and the scheduler, each with noise."""

    mbit: float
    trip: float
    turns: float
    noise: float
    seed: int = 1
    compute: float = 0.075
    scale: float = 4.0
    estimator: Estimator = field(default_factory=Estimator)
    now: float = 1000.0
    levels: list[Level] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def run(self, controller: Controller, steps: int) -> Machine:
        rng, estimator, peer = random.Random(self.seed), self.estimator, ClockSync()
        coming: deque[Decision] = deque([Decision(Level(values="int8"), "")] * 2, maxlen=2)
        for _ in range(steps):
            level = coming[0].level
            facts = self.step(level, rng)
            self.now += facts.seconds
            now = self.now
            self.levels.append(level)
            self.seconds.append(facts.seconds)
            peer.take(now - self.trip, now, now, now)
            view: View = estimator.update([StepObservation(facts, now)] * RANKS, [peer], now)
            coming.append(controller.decide(JOB, view, facts, now))
        return self

    def step(self, level: Level, rng: random.Random) -> StepFacts:
        as_ours = replace(level, select="topk") if level.select == "sharedk" else level
        rung = LADDER[index_of(as_ours)]
        wire = JOB.wire_bytes(level)
        hops = max(size.hops for size in JOB.footprint(level, BUCKETS))
        work = self.scale * rung.work * 1e-9 * JOB.numel
        jitter = rng.lognormvariate(0.0, self.noise)
        busy = (hops * self.trip / 2 + self.turns) * jitter + wire / float(Rate.from_mbit(self.mbit))
        exposed = busy + work / 2
        times = tuple((0.01 * i, 4 * NUMEL) for i in range(4))
        compute = self.compute + work / 2
        return StepFacts(compute + exposed, exposed, busy, wire, hops, work, 0.03, times, level=level)

    def cost(self, last: int) -> float:
        """Mean time to accuracy of the last steps."""
        pairs = zip(self.levels[-last:], self.seconds[-last:], strict=True)
        return statistics.fmean(took * PRICES.of(level) for level, took in pairs)


class Same:
    def __init__(self, level: Level) -> None:
        self.level = level

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        return Decision(self.level, "")


def best_fixed(mbit: float, trip: float, turns: float, noise: float) -> tuple[float, Level]:
    costs = [(Machine(mbit, trip, turns, noise).run(Same(r.level), 60).cost(50), r.level) for r in LADDER]
    return min(costs, key=lambda pair: pair[0])


@pytest.mark.parametrize(("mbit", "trip"), [(50, 0.001), (100, 0.02), (200, 0.1), (800, 0.001), (10_000, 0.001)])
@pytest.mark.parametrize(("turns", "noise"), [(0.002, 0.02), (0.05, 0.1)])
@pytest.mark.slow
def test_auto_comes_near_the_best_fixed_rung_on_a_busy_machine(
    mbit: float, trip: float, turns: float, noise: float
) -> None:
    best, level = best_fixed(mbit, trip, turns, noise)
    ours = statistics.median(
        Machine(mbit, trip, turns, noise, seed).run(Auto(extra_steps=ANY), WARM + 200).cost(150) for seed in (2, 3, 4)
    )
    assert ours <= best / 0.95, f"{ours:.3f} s against {best:.3f} s of {level}"


@pytest.mark.parametrize("mbit", [800, 1000])
def test_auto_stays_near_the_best_where_scheduling_dominates_the_bytes(mbit: float) -> None:
    best, level = best_fixed(mbit, 0.001, 0.15, 0.2)
    costs = [
        Machine(mbit, 0.001, 0.15, 0.2, seed).run(Auto(extra_steps=ANY), WARM + 200).cost(150) for seed in (2, 3, 4)
    ]
    assert statistics.median(costs) <= best / 0.85, f"{costs} s against {best:.3f} s of {level}"


@pytest.mark.parametrize("mbit", [200, 800])
def test_auto_settles_on_a_steady_network_where_the_model_is_wrong(mbit: float) -> None:
    for seed in (1, 2, 3):
        levels = Machine(mbit, 0.001, 0.05, 0.1, seed).run(Auto(extra_steps=ANY), WARM + 500).levels
        late = levels[WARM + 250 :]
        assert late.count(statistics.mode(late)) >= 0.9 * len(late), "single probing steps, and little else"
        assert sum(a != b for a, b in itertools.pairwise(levels[30:330])) <= 3


def test_a_rung_that_was_explored_and_is_worse_is_left_again() -> None:
    """At 800 Mbit/s it is 5 % worse, less than what keeps a rung that was chosen."""
    best, _ = best_fixed(800, 0.001, 0.05, 0.1)
    for seed in (1, 2, 3):
        assert Machine(800, 0.001, 0.05, 0.1, seed).run(Auto(extra_steps=ANY), WARM + 200).cost(150) <= best / 0.97


@pytest.mark.parametrize(("mbit", "trip", "turns", "noise"), [(100, 0.02, 0.05, 0.5), (20, 0.001, 0.05, 0.6)])
@pytest.mark.slow
def test_an_unsteady_machine_does_not_make_auto_oscillate(mbit: float, trip: float, turns: float, noise: float) -> None:
    """Exchanges that take twice as long now and then look like a network change, but are not. Forgetting what was
    measured then can leave `auto` at a rung whose few bytes do not show the bandwidth; that costs some per cent."""
    best, _ = best_fixed(mbit, trip, turns, noise)
    for seed in (2, 3, 4):
        run = Machine(mbit, trip, turns, noise, seed).run(Auto(extra_steps=ANY), WARM + 600)
        changes = sum(a != b for a, b in zip(run.levels, run.levels[1:], strict=False))
        assert changes <= 30
        assert run.cost(500) <= best / 0.85


def test_auto_under_a_plan_returns_to_milder_levels_when_the_network_gets_faster() -> None:
    """With a plan top-k runs as sharedk; auto must recognise it as its own choice."""
    auto = SummableController(Auto(extra_steps=9.0))
    machine = Machine(5, 0.02, 0.002, 0.02).run(auto, WARM + 120)
    assert machine.levels[-1].select == "sharedk"
    machine.mbit = 10_000
    assert not machine.run(auto, 280).levels[-1].sparse
