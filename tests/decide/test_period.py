"""Period: level and number of local steps, chosen by expected time to accuracy, in virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

import pytest

from gradwire.decide.base import Job
from gradwire.decide.fixed import FixedLevel
from gradwire.decide.period import FIRST_ROUND, PERIODS, PeriodOption, best_of, choose, longest_round
from gradwire.decide.period_controller import PeriodController, local_levels
from gradwire.decide.period_guard import PENALTY
from gradwire.decide.period_price import PeriodPrice, cosine_of, prior_price
from gradwire.exchange.select import FootprintTable
from gradwire.level import Level
from gradwire.types import Bucket, Decision, LinkView, ParameterSlice, RoundNorms, StepFacts, View

INT8, INT4, OFF = Level.parse("int8"), Level.parse("int4"), Level()
MBIT = 125_000.0
FAR = 1.0  # seconds that the network certainly takes


def option(every: int, exchange: float, price: float = 1.0, level: Level = INT8, compute: float = 0.1) -> PeriodOption:
    return PeriodOption(level, every, compute, exchange, price)


def test_time_to_accuracy_divides_the_exchange_by_the_local_steps_and_multiplies_by_the_price() -> None:
    one = option(20, 1.0, price=1.2)
    assert one.seconds == pytest.approx(0.15)
    assert one.to_accuracy == pytest.approx(0.18)


def test_among_equal_options_the_one_with_the_fewest_local_steps_is_best() -> None:
    options = [option(1, 1.0), option(10, 0.1, 1.0), option(20, 0.0, 1.0), option(50, 0.0, 1.0)]
    assert best_of(options).sync_every == 20
    assert best_of([option(10, 0.0), option(20, 0.0)]).sync_every == 10


def test_a_small_gain_changes_nothing_and_a_clear_one_does() -> None:
    here = option(1, 0.012)
    assert choose([here, option(20, 0.012)], here, FAR)[0] is here
    slow = option(1, 0.1)
    best, reason = choose([slow, option(20, 0.1)], slow, FAR)
    assert best.sync_every == 20
    assert "every 20 steps" in reason
    assert "every step" in reason


def test_local_steps_return_to_synchronous_ones_only_for_a_clear_gain() -> None:
    local = option(20, 0.02, price=1.1)
    assert choose([option(1, 0.0), local], local, FAR)[0] is local
    dear = option(20, 0.02, price=1.3)
    assert choose([option(1, 0.0), dear], dear, FAR)[0].sync_every == 1


def test_a_network_that_takes_little_for_certain_is_no_reason_for_local_steps() -> None:
    """The step waits for half its time, but not for the network."""
    here = option(1, 0.1)
    assert choose([here, option(20, 0.1)], here, network=0.001)[0] is here
    assert choose([here, option(20, 0.1)], here, network=0.05)[0].sync_every == 20


@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("workers", [2, 4, 8])
def test_the_price_grows_with_steps_and_is_at_most_the_number_of_workers(adaptive: bool, workers: int) -> None:
    prices = [prior_price(every, workers, adaptive) for every in (1, *PERIODS, 10_000_000)]
    assert prices == sorted(prices)
    assert prices[0] == 1.0
    assert prices[-1] == workers
    assert prior_price(100, 1, adaptive) == 1.0


def test_more_workers_lose_more_by_training_alone() -> None:
    prices = [prior_price(50, workers, adaptive=True) for workers in (2, 4, 8)]
    assert prices == sorted(set(prices))


def test_the_cosine_of_a_round_follows_from_norms() -> None:
    assert cosine_of(RoundNorms(5, 4.0, 4.0), 4) == pytest.approx(1.0)
    assert cosine_of(RoundNorms(5, 4.0, 1.0), 4) == pytest.approx(0.0)
    assert cosine_of(RoundNorms(5, 0.0, 0.0), 4) == 1.0


def test_ranks_that_agree_lower_the_price_and_ranks_that_oppose_each_other_raise_it() -> None:
    def after(shared: float) -> float:
        price = PeriodPrice(4)
        for _ in range(20):
            price.take(RoundNorms(20, 1.0, shared), adaptive=True)
        return price.of(20)

    usual = PeriodPrice(4).of(20)
    assert after(1.0) < usual < after(0.05)


def test_one_round_or_a_broken_one_does_not_change_the_price_much() -> None:
    price = PeriodPrice(4)
    before = price.of(20)
    price.take(RoundNorms(20, float("nan"), 1.0), adaptive=True)
    price.take(RoundNorms(20, 0.0, 0.0), adaptive=True)
    assert price.of(20) == before
    price.take(RoundNorms(20, 1.0, 1.0), adaptive=True)
    assert 1 < price.of(20) < before


def test_local_steps_use_dense_levels_within_the_users_limits() -> None:
    assert [str(level) for level in local_levels(None, 0.05)] == ["off", "fp16", "int8", "int4"]
    assert [str(level) for level in local_levels(INT8, 0.05)] == ["off", "fp16", "int8"]
    assert "int2" in [str(level) for level in local_levels(None, 1.0)]


def buckets(numel: int = 200_000) -> tuple[Bucket, ...]:
    one = (ParameterSlice("p", 0, (numel // 100, 100), numel),)
    return tuple(Bucket(index, 0, numel, 4, one, index == 1) for index in range(2))


@dataclass
class PeriodWorld:
    """Steps and rounds on a network whose rate (bytes per second) and round trip may change."""

    controller: PeriodController
    rate: float
    trip: float = 0.01
    compute: float = 0.05
    cosine: float = 0.4
    changes: int = 0
    # Whether steps show the bandwidth, and what rounds begin with.
    identified: bool = True
    # Whether neither is known, and only the bytes of an exchange in its time.
    floor: bool = False
    first: Decision = field(default_factory=lambda: Decision(INT8, "start"))
    # The noted loss, by the number of local steps and the steps so far; 0: none is noted.
    loss: Callable[[int, int], float] = lambda every, steps: 0.0
    job: Job = field(default_factory=lambda: Job(4, buckets(), FootprintTable(4)))
    decisions: list[Decision] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0

    def run(self, steps: int) -> PeriodWorld:
        """A decision is in force two sessions' steps later."""
        coming = [*self.decisions[-2:], *[self.first] * 2][:2]
        while self.steps < steps:
            decision = coming.pop(0)
            facts = self.facts(decision)
            self.steps += facts.steps
            self.seconds += facts.seconds
            link = LinkView(rtprop=self.trip, bandwidth=self.rate if self.identified else None)
            if self.floor:
                link = LinkView(floor=facts.wire_bytes / facts.busy)
            view = View(link, changes=self.changes)
            coming.append(self.controller.decide(self.job, view, facts, self.seconds))
            self.decisions.append(coming[-1])
        return self

    def facts(self, decision: Decision) -> StepFacts:
        sizes = self.job.sizes(decision.level)
        exchange = sizes.wire_bytes / self.rate + sizes.last_hops * self.trip / 2
        every = decision.sync_every
        exposed = exchange if every > 1 else max(0.0, exchange - self.compute / 3)
        apart = RoundNorms(every, 1.0, (1 + 3 * self.cosine) / 4) if every > 1 else None
        return StepFacts(
            every * self.compute + exposed, exposed, exchange, sizes.wire_bytes, 2, buckets=((0.0, 1), (0.03, 1)),
            level=decision.level, adaptive=True, steps=every, divergence=apart,
            loss=self.loss(every, self.steps),
        )  # fmt: skip

    @property
    def periods(self) -> list[int]:
        return [one.sync_every for one in self.decisions]


def controller(level: Level = INT8, levels: tuple[Level, ...] = (OFF, INT8, INT4)) -> PeriodController:
    return PeriodController(FixedLevel(level), levels)


def changes(periods: list[int]) -> int:
    return sum(a != b for a, b in pairwise(periods))


def test_a_fast_network_stays_synchronous() -> None:
    world = PeriodWorld(controller(), rate=1000 * MBIT, trip=0.0005).run(300)
    assert set(world.periods) == {1}


@pytest.mark.parametrize(("rate", "trip"), [(5 * MBIT, 0.02), (1000 * MBIT, 0.3)])
def test_a_slow_or_far_network_gets_local_steps_within_ten_steps_and_keeps_them(rate: float, trip: float) -> None:
    world = PeriodWorld(controller(), rate, trip).run(2000)
    assert world.periods[8] > 1
    assert changes(world.periods[8:]) <= 2
    assert "every" in world.decisions[-1].reason


def test_the_chosen_period_and_level_are_the_best_together() -> None:
    """Compared with every other choice, by the same prices."""
    world = PeriodWorld(controller(), 5 * MBIT).run(2000)
    chosen = world.decisions[-1]
    price = PeriodPrice(4)

    def time(level: Level, every: int) -> float:
        facts = world.facts(replace(chosen, level=level, sync_every=every))
        return facts.seconds / every * price.of(every) * {"int4": 1.02, "int8": 1.002}.get(str(level), 1.0)

    best = min(time(level, every) for level in (OFF, INT8, INT4) for every in PERIODS)
    assert time(chosen.level, chosen.sync_every) <= 1.08 * best


@pytest.mark.slow
def test_a_network_that_becomes_fast_returns_to_synchronous_steps_by_an_uncompressed_exchange() -> None:
    world = PeriodWorld(controller(), 5 * MBIT).run(1000)
    assert world.periods[-1] > 1
    world.rate, world.trip, world.changes = 1000 * MBIT, 0.0005, 1
    world.run(6000)
    assert world.periods[-1] == 1
    first = next(
        after for before, after in pairwise(world.decisions)
        if before.sync_every > 1 and after.sync_every == 1
    )  # fmt: skip
    assert first.level.off
    assert world.decisions[-1].level == INT8, "afterwards the level of synchronous steps"


def test_a_network_that_becomes_slow_gets_local_steps() -> None:
    world = PeriodWorld(controller(), 1000 * MBIT, trip=0.0005).run(100)
    world.rate, world.changes = 2 * MBIT, 1
    world.run(1000)
    assert world.periods[-1] > 1


def test_replicas_that_differ_more_than_usual_get_shorter_rounds() -> None:
    alike = PeriodWorld(controller(), 5 * MBIT, cosine=0.95).run(4000)
    apart = PeriodWorld(controller(), 5 * MBIT, cosine=0.0).run(4000)
    assert apart.periods[-1] <= alike.periods[-1]
    assert apart.controller._price is not None
    assert alike.controller._price is not None
    assert apart.controller._price.factor > alike.controller._price.factor


def test_a_network_that_alternates_does_not_change_the_mode_every_time() -> None:
    world = PeriodWorld(controller(), 10 * MBIT)
    for part in range(1, 21):
        world.rate, world.trip = (1000 * MBIT, 0.0005) if part % 2 else (10 * MBIT, 0.02)
        world.run(100 * part)
    assert changes([min(one, 2) for one in world.periods]) < 10


def test_a_latency_alone_is_reason_for_local_steps_at_the_level_in_use() -> None:
    """On a far network the bandwidth is not identified for some steps; without one all levels look equal."""
    world = PeriodWorld(controller(), rate=100 * MBIT, trip=0.3, identified=False).run(5)
    assert world.decisions[0].sync_every > 1
    assert {one.level for one in world.decisions} == {INT8}
    near = PeriodWorld(controller(), rate=100 * MBIT, trip=0.001, identified=False).run(200)
    assert set(near.periods) == {1}


def test_a_gain_that_is_below_twice_is_taken_after_three_decisions_at_first() -> None:
    world = PeriodWorld(controller(), rate=60 * MBIT, trip=0.02).run(30)
    assert world.periods[0] == 1, "at the first decision the gain was not confirmed"
    assert world.periods[4] > 1


@pytest.mark.parametrize("cosine", [0.0, 0.95])
def test_no_round_is_long_against_the_training_before_it(cosine: float) -> None:
    world = PeriodWorld(controller(), 2 * MBIT, trip=0.3, cosine=cosine).run(3000)
    made = 0
    for every in world.periods:
        assert every <= max(FIRST_ROUND, longest_round(made))
        made += every
    assert max(world.periods) > FIRST_ROUND, "long rounds are used later"


def test_a_job_whose_steps_are_all_local_is_never_told_to_synchronise_every_step() -> None:
    """Along an elastic plan: on a fast network, after harm, and when nothing was measured."""
    always = [
        PeriodWorld(local_only(), 1000 * MBIT, trip=0.0005, first=every(10)).run(500),
        PeriodWorld(local_only(), 5 * MBIT, first=every(10)).run(3000),
        PeriodWorld(local_only(), 5 * MBIT, first=every(10), loss=lambda every, steps: math.nan).run(3000),
    ]
    fast, slow, harmed = (world.periods for world in always)
    assert set(fast) == {10}
    assert max(slow) > 10
    assert set(harmed[-20:]) == {10}
    nothing = View.unknown()
    facts = StepFacts(0.2, 0.1, steps=10, divergence=RoundNorms(10, 1.0, 0.5))
    assert local_only().decide(Job(4, buckets(), FootprintTable(4)), nothing, facts, 1.0).sync_every == 10


def test_rounds_become_longer_where_only_whole_exchanges_were_timed() -> None:
    """Along a plan's trees no round trips are measured, and a far network looks like a slow one."""
    world = PeriodWorld(local_only(), 100 * MBIT, trip=0.3, first=every(10), floor=True).run(1000)
    assert max(world.periods) > 10


def local_only() -> PeriodController:
    return PeriodController(FixedLevel(INT8), (OFF, INT8, INT4), synchronous=False)


def every(steps: int) -> Decision:
    return Decision(INT8, "start", sync_every=steps)


def test_a_job_whose_network_is_not_measured_stays_synchronous() -> None:
    decided = controller().decide(Job(4, buckets(), FootprintTable(4)), View.unknown(), StepFacts(0.2, 0.1), 1.0)
    assert decided.sync_every == 1


def test_after_a_state_was_loaded_the_period_stays_until_the_network_is_measured() -> None:
    resumed = controller()
    resumed.resume(INT4, 20)
    job, apart = Job(4, buckets(), FootprintTable(4)), RoundNorms(20, 1.0, 0.5)
    decided = resumed.decide(job, View.unknown(), StepFacts(1.0, 0.1, steps=20, divergence=apart), 1.0)
    assert (decided.level, decided.sync_every) == (INT4, 20)


def falling(every: int, steps: int) -> float:
    return 4.0 * 0.999**steps + 0.02 * (steps % 3)


def test_a_loss_that_falls_or_is_not_noted_never_acts() -> None:
    quiet = PeriodWorld(controller(), 5 * MBIT).run(4000)
    noted = PeriodWorld(controller(), 5 * MBIT, loss=falling).run(4000)
    assert noted.periods == quiet.periods
    assert not any(one.guarded for one in noted.decisions)


@pytest.mark.parametrize("bad", [lambda steps: 4.0 + steps / 500, lambda steps: math.nan])
def test_local_steps_that_harm_become_fewer_and_are_not_tried_again_soon(bad: Callable[[int], float]) -> None:
    """Rounds of 20 steps and more diverge after a while; shorter ones and synchronous steps do not."""

    def loss(every: int, steps: int) -> float:
        return bad(steps) if every >= 20 and steps > 600 else falling(every, steps)

    world = PeriodWorld(controller(), 5 * MBIT, loss=loss).run(600)
    before = world.periods[-1]
    assert before >= 20
    world.run(2400)
    acts = [one for one in world.decisions if one.guarded]
    assert acts, world.decisions[-1].reason
    assert f"with rounds of {before} steps; backing off to" in acts[0].reason
    assert acts[0].sync_every < before
    first = world.decisions.index(acts[0])
    later = list(accumulate(world.periods[first:]))
    assert max(every for every, steps in zip(world.periods[first:], later, strict=True) if steps < PENALTY) < before
