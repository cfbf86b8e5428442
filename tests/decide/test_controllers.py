"""Controllers in virtual time, on a scripted network."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from gradwire.decide.accuracy_guard import AccuracyGuard
from gradwire.decide.auto import HOLD, WORSE, Auto
from gradwire.decide.base import Controller, Job
from gradwire.decide.cost_model import STOLEN
from gradwire.decide.dc2 import Dc2
from gradwire.decide.decision_record import pack_decision, unpack_decision
from gradwire.decide.ladder import LADDER, index_of
from gradwire.decide.netsense import NetSense
from gradwire.decide.price import PriceList
from gradwire.exchange.select import FootprintTable
from gradwire.level import Level
from gradwire.sense.change_detector import ChangeDetector, StepSample
from gradwire.types import Bucket, Decision, LinkView, ParameterSlice, Slowdown, StepFacts, View
from gradwire.units import Rate

MB = 250_000  # elements of a megabyte
# Without a sample of a gradient, prices are the cautious ones that auto begins with.
PRICES = PriceList(tuple(rung.level.ratio for rung in LADDER if rung.level.sparse))
# Allows every rung, whatever it costs in steps; and a number of steps after which none is in warm-up.
ANY = 9.0
WARM = 120


def buckets(count: int = 10, numel: int = 4 * MB, *, matrices: bool = True) -> tuple[Bucket, ...]:
    shape = (500, numel // 500) if matrices else (numel,)
    return tuple(
        Bucket(i, 0, numel, 4, (ParameterSlice(f"p{i}", 0, shape, numel),), i == count - 1) for i in range(count)
    )


@dataclass
class World:
    """Simulates steps: the chosen level, at a rate and a round trip that may change, gives the next facts."""

    controller: Controller
    rate: Callable[[int], float]
    trip: float = 0.002
    compute: float = 0.3
    span: float = 0.2
    job: Job = field(default_factory=lambda: Job(8, buckets(), FootprintTable(8)))
    levels: list[Level] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def run(self, steps: int, start: Level = Level(values="int8")) -> World:  # noqa: B008
        level, view = start, View.unknown()
        delay, variation, changes, detector = 0.0, 0.0, 0, ChangeDetector()
        rates: deque[float] = deque(maxlen=3)
        for step in range(steps):
            rate = self.rate(step)
            wire = self.job.wire_bytes(level)
            hops = max(size.hops for size in self.job.footprint(level, self.job.buckets))
            busy = wire / rate + hops * self.trip / 2
            exposed, work = self.exposed(level, rate), work_per_element(level) * self.job.numel
            times = tuple((self.span * i / 9, 16 * MB) for i in range(10))
            took = self.compute + STOLEN * work + exposed
            facts = StepFacts(took, exposed, busy, wire, hops, work, self.span, times)
            variation += 0.25 * (abs(busy - delay) - variation) if delay else 0.0
            delay = busy if not delay else delay + 0.125 * (busy - delay)
            rates.append(rate)
            estimate = statistics.median(rates)  # as an estimator does, which ignores one outlier
            link = LinkView(self.trip, estimate, estimate, delay=delay, variation=variation, confidence=1.0)
            changes += bool(detector.take(StepSample(wire, busy, hops * self.trip / 2)))
            view = View(link, changes=changes)
            decision: Decision = self.controller.decide(self.job, view, facts, 1000.0 + step)
            self.levels.append(level)
            self.seconds.append(facts.seconds)
            self.reasons.append(decision.reason)
            level = decision.level
        return self

    def exposed(self, level: Level, rate: float) -> float:
        """What training waits for: buckets queue for the processor and then for the link, in the order in which
        backward produces them."""
        encoded = free = 0.0
        for index, size in enumerate(self.job.footprint(level, self.job.buckets)):
            encoding = work_per_element(level) * self.job.buckets[index].numel / 2
            encoded = max(encoded, self.span * index / 9) + encoding
            free = max(free, encoded) + size.wire_bytes / rate
        return free + size.hops * self.trip / 2 + encoding - self.span


def work_per_element(level: Level) -> float:
    as_ours = replace(level, select="topk") if level.select == "sharedk" else level
    return LADDER[index_of(as_ours)].work * 1e-9


def steady(mbit: float) -> Callable[[int], float]:
    return lambda step: float(Rate.from_mbit(mbit))


def fixed_time(level: Level, mbit: float, trip: float) -> float:
    """A step's time at one level on a steady network, times the price of the level."""

    class Same:
        def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
            return Decision(level, "")

    return World(Same(), steady(mbit), trip).run(2, level).seconds[-1] * PRICES.of(level)


def test_auto_is_off_where_the_network_is_not_the_bottleneck() -> None:
    world = World(Auto(), steady(10_000), trip=0.0002).run(20)
    assert world.levels[-1].off
    assert "would not shorten" in world.reasons[-1]


def test_the_reason_states_what_a_lossy_level_costs_in_steps() -> None:
    world = World(Auto(), steady(50), trip=0.02).run(60)
    assert str(world.levels[-1]) == "lowrank:32+int4"
    assert "about 4% more steps" in world.reasons[-1]
    fast = World(Auto(), steady(10_000), trip=0.0002).run(20)
    assert "more steps" not in fast.reasons[-1]


@pytest.mark.slow
@pytest.mark.parametrize("mbit", [50, 100, 200, 500, 800, 1000, 10_000])
@pytest.mark.parametrize("trip", [0.001, 0.02, 0.1])
def test_auto_is_nearly_as_good_as_the_best_fixed_level(mbit: float, trip: float) -> None:
    world = World(Auto(extra_steps=ANY), steady(mbit), trip).run(2 * WARM)
    ours = world.seconds[-1] * PRICES.of(world.levels[-1])
    best = min(fixed_time(rung.level, mbit, trip) for rung in LADDER)
    assert ours <= (1 + WORSE) * best / 0.98, "the band against flapping"


@pytest.mark.parametrize("mbit", [50, 200, 1000])
def test_auto_does_not_flap_on_a_steady_network_with_noise(mbit: float) -> None:
    noise = [1.0, 0.97, 1.04, 0.95, 1.02, 1.05, 0.98, 1.03]
    world = World(Auto(extra_steps=ANY), lambda step: float(Rate.from_mbit(mbit)) * noise[step % 8]).run(300)
    settled = world.levels[WARM:]
    assert sum(a != b for a, b in itertools.pairwise(settled)) <= 1


@pytest.mark.parametrize(("before", "after"), [(1000, 50), (20, 1000), (10_000, 100), (10, 10_000)])
def test_auto_follows_a_change_within_five_steps(before: float, after: float) -> None:
    """By then it is as good as the best rung, to within the band that keeps a rung from flapping; and it stays so."""
    change = WARM + 30
    auto = Auto(extra_steps=ANY)
    world = World(auto, lambda step: float(Rate.from_mbit(before if step < change else after))).run(change + 30)
    enough = (1 + WORSE) * min(fixed_time(rung.level, after, world.trip) for rung in LADDER)
    costs = [fixed_time(level, after, world.trip) for level in world.levels]
    assert costs[change - 1] > enough, "the change must matter, or this test checks nothing"
    assert min(costs[change : change + 6]) <= enough
    assert max(costs[change + 6 :]) <= enough


def test_every_decision_says_why_in_one_sentence() -> None:
    world = World(Auto(), steady(100)).run(10)
    assert "100 Mbit/s" in world.reasons[-1]
    assert "uncompressed takes" in world.reasons[-1]
    assert "\n" not in world.reasons[-1]


@pytest.mark.parametrize("mbit", [0.5, 10, 100, 1000, 20_000])
def test_other_ranks_receive_the_reasons_of_auto_in_full(mbit: float) -> None:
    world = World(Auto(extra_steps=ANY), steady(mbit)).run(WARM + 30)
    for level, reason in zip(world.levels, world.reasons, strict=True):
        sent = Decision(level, reason)
        assert unpack_decision(pack_decision(sent)) == sent


def test_netsense_ratio_rises_again_where_the_published_rule_only_falls() -> None:
    world = World(NetSense(), steady(10_000), trip=0.0002).run(80, netsense_start())
    assert world.levels[-1].off


def netsense_start() -> Level:
    return Level(select="topk", ratio=0.01, values="int8")


def test_netsense_starts_small_and_doubles() -> None:
    world = World(NetSense(), steady(10_000)).run(4, netsense_start())
    assert [level.ratio for level in world.levels] == [0.01, 0.02, 0.04, 0.08]


def test_netsense_compresses_when_congestion_hurts_and_holds_near_the_edge() -> None:
    world = World(NetSense(), steady(200)).run(150, netsense_start())
    late = world.seconds[-40:]
    assert max(late) < 1.5 * 0.3, "waiting stays small"
    assert all(level.sparse or not level.off for level in world.levels[-40:])


def test_dc2_compresses_more_the_longer_the_delay() -> None:
    sizes = []
    for mbit in (10_000, 1_000, 200, 50):
        world = World(Dc2(), steady(mbit)).run(80, Level(values="int8"))
        sizes.append(world.job.wire_bytes(world.levels[-1]))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 20 * sizes[-1]


def test_dc2_switches_off_after_five_quiet_steps() -> None:
    world = World(Dc2(), steady(50_000)).run(60, Level(values="int8"))
    assert world.levels[-1].off


def test_dc2_allows_for_variation_of_the_delay() -> None:
    even = World(Dc2(), steady(300)).run(80, Level(values="int8"))
    bursts = [300.0, 300.0, 300.0, 40.0]
    uneven = World(Dc2(), lambda step: float(Rate.from_mbit(bursts[step % 4]))).run(80, Level(values="int8"))
    assert uneven.job.wire_bytes(uneven.levels[-1]) < even.job.wire_bytes(even.levels[-1])


def observed(loss: float = 0.0, energy: float = 0.0) -> StepFacts:
    """A step with a noted loss and a sampled gradient of this energy; 0: none."""
    sample = np.array([math.sqrt(energy)], dtype=np.float32) if energy else None
    return StepFacts(3.0, 2.0, 2.0, 10**6, 2, 0.0, 0.2, ((0.0, 1), (0.2, 1)), loss=loss, sample=sample)


SPARSE = Level.parse("topk:0.01+int8")


def test_the_guard_watches_the_loss() -> None:
    guard = AccuracyGuard()
    harmed = [guard.check(step, SPARSE, observed(2.0 if step < 50 else 4.0)) for step in range(60)]
    assert not any(harmed[:50])
    assert any(harmed[50:])
    assert "the loss rose from 2" in guard.reason
    assert "topk:0.01" in guard.reason
    assert not guard.allows(SPARSE)
    assert not guard.allows(Level.parse("topk:0.001+int8"))
    assert guard.allows(Level.parse("topk:0.1+int8"))
    assert guard.allows(Level())


def test_the_guard_forbids_for_twice_as_long_each_time() -> None:
    guard, forbidden = AccuracyGuard(), []
    step = 0
    for _ in range(2):
        for loss in [1.0] * 80 + [5.0] * 10:
            step += 1
            if guard.check(step, SPARSE, observed(loss)):
                break
        since = step
        while not guard.allows(SPARSE):
            step += 1
            guard.check(step, Level(), observed(1.0))
        forbidden.append(step - since)
    assert forbidden[1] == 2 * forbidden[0]


def test_without_noted_losses_the_guard_watches_the_gradient() -> None:
    guard = AccuracyGuard()
    rng = np.random.default_rng(1)
    calm = [float(rng.lognormal(0.0, 0.7)) for _ in range(300)]
    assert not any(guard.check(step, SPARSE, observed(energy=energy)) for step, energy in enumerate(calm))
    assert any(guard.check(300 + i, SPARSE, observed(energy=1.5**i)) for i in range(30))
    assert "the gradient grew" in guard.reason


def test_the_guard_takes_neither_spikes_nor_the_rise_of_a_healthy_start_for_harm() -> None:
    guard, rng = AccuracyGuard(), np.random.default_rng(2)
    for step in range(300):
        rise = 3.0 if step > 30 else 1.0
        spike = 200.0 if step % 20 < 3 else 1.0
        energy = rise * spike * float(rng.lognormal(0.0, 0.7))
        assert not guard.check(step, SPARSE, observed(energy=energy))


def test_a_growing_gradient_is_not_blamed_on_levels_that_only_round() -> None:
    guard = AccuracyGuard()
    assert not any(guard.check(step, Level.parse("int4"), observed(energy=1.3**step)) for step in range(100))


def test_a_noisy_loss_is_no_rise_and_a_rise_above_its_noise_is_one() -> None:
    guard, rng = AccuracyGuard(), np.random.default_rng(3)
    noisy = [0.5 * float(rng.lognormal(0.0, 0.3)) for _ in range(3000)]
    # The last of these thousands of notes come from a level that does not fall any more.
    assert not any(guard.check(step, Level.parse("int4"), observed(loss)) for step, loss in enumerate(noisy))
    risen = [1.5 * float(rng.lognormal(0.0, 0.3)) for _ in range(15)]
    assert any(guard.check(3000 + step, Level.parse("int4"), observed(loss)) for step, loss in enumerate(risen))


def test_the_guard_finds_a_stall_at_a_lossy_level_only() -> None:
    def stalls(level: Level) -> bool:
        guard = AccuracyGuard()
        return any(guard.check(step, level, observed(2.0 / (1 + min(step, 100) / 50))) for step in range(700))

    assert stalls(SPARSE)
    assert not stalls(Level.parse("int4"))


def test_the_guard_ignores_single_values_that_are_no_loss() -> None:
    guard = AccuracyGuard()
    for step in range(100):
        assert not guard.check(step, SPARSE, observed(1.0 if step % 20 == 0 else 0.0))
    for loss in (1.45, float("nan"), float("inf"), -3.0, *[0.0] * 30):
        assert not guard.check(100, SPARSE, observed(loss))
    assert any(guard.check(101, SPARSE, observed(float("nan"))) for _ in range(10))
    assert "not finite" in guard.reason


def test_uncompressed_steps_are_never_blamed() -> None:
    guard = AccuracyGuard()
    assert not any(guard.check(step, Level(), observed(1.0 + step)) for step in range(200))


def test_auto_backs_off_to_a_dense_level_when_the_guard_says_so() -> None:
    auto, ran = Auto(extra_steps=ANY), SPARSE
    job = Job(8, buckets(), FootprintTable(8))
    view = View(LinkView(0.002, float(Rate.from_mbit(20)), 1e6, delay=1.0, confidence=1.0))
    for loss in [2.0] * 120 + [8.0] * 20:
        decision = auto.decide(job, view, replace(observed(loss), level=ran), 1000.0)
        if decision.guarded:
            break
    assert decision.guarded
    assert decision.level.select == "all"
    assert "backing off to" in decision.reason


def test_auto_uses_no_level_that_costs_more_steps_than_the_user_allows() -> None:
    """Without matrices low rank, which costs few steps, has nothing to factorise."""
    vectors = Job(8, buckets(matrices=False), FootprintTable(8))
    slow = World(Auto(), steady(20), job=vectors).run(WARM)
    assert all(PRICES.of(level) <= 1.05 for level in slow.levels)
    assert not slow.levels[-1].off
    traded = World(Auto(extra_steps=1.5), steady(20), job=vectors).run(WARM)
    assert 1.05 < PRICES.of(traded.levels[-1]) <= 2.5


@dataclass
class Priced:
    """The price of one level is what a test sets; milder ones cost nothing, lossier ones too much."""

    level: Level
    price: float = 1.0
    settled: bool = True

    def take(self, ran: Level, facts: StepFacts) -> None:
        pass

    def of(self, level: Level) -> float:
        if level == self.level:
            return self.price
        return 1.0 if index_of(level) < index_of(self.level) else 9.0

    def slowdown(self, level: Level) -> Slowdown:
        return Slowdown(level, self.of(level), self.of(level))


def test_a_rung_in_use_is_left_for_its_price_when_that_lasts() -> None:
    auto = Auto()
    world = World(auto, steady(20), trip=0.02).run(WARM + 30)
    used = world.levels[-1]
    prices = auto._prices = Priced(used)  # type: ignore[assignment]
    for _ in range(5):
        prices.price = 1.06
        assert set(world.run(HOLD - 4, used).levels[-(HOLD - 4) :]) == {used}, "noise"
        prices.price = 1.04
        world.run(1, used)
    prices.price = 1.06
    assert world.run(2 * HOLD, used).levels[-1] != used
    assert any("would cost 6% more steps" in reason for reason in world.reasons)


def test_auto_is_dense_during_warm_up_and_obeys_the_cap() -> None:
    world = World(Auto(extra_steps=ANY), steady(10)).run(WARM)
    assert not any(level.sparse for level in world.levels[:20])
    assert world.levels[-1].select != "all"
    capped = World(Auto(Level.parse("int8"), extra_steps=ANY), steady(10)).run(WARM)
    assert set(map(str, capped.levels)) <= {"off", "fp16", "int8"}


def test_auto_probes_from_time_to_time_when_its_traffic_does_not_measure_the_network() -> None:
    auto, job = Auto(extra_steps=ANY), Job(8, buckets(), FootprintTable(8))
    for _ in range(WARM):
        auto.decide(job, View.unknown(), StepFacts(level=SPARSE), 999.0)
    stale = View(LinkView(0.02, float(Rate.from_mbit(300)), 3e7, delay=1.0, age=9.0, confidence=0.25))
    times = tuple((0.02 * i, 16 * MB) for i in range(10))
    facts = StepFacts(0.5, 0.2, 0.2, 10**6, 2, 0.0, 0.2, times)
    decisions = [auto.decide(job, stale, facts, 1000.0 + step) for step in range(300)]
    settled = decisions[-1].level
    probes = [index for index, one in enumerate(decisions) if "whether the network got faster" in one.reason]
    assert 1 <= len(probes) <= 6
    assert all(index_of(decisions[index].level) < index_of(settled) for index in probes)
    assert all(decisions[index + 1].level == settled for index in probes if index < 299)
