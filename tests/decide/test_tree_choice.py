"""Trees as a choice of the transport chooser: opened on a forecast, kept on measured steps, never used by some only."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gradwire.decide.transport_choice import RETRY, TransportChooser
from gradwire.decide.transport_step import TransportStep
from gradwire.decide.transport_trial import ENOUGH, MOST, OPENING
from gradwire.level import Level
from gradwire.types import LevelOption, LinkView, RouteForecast, StepFacts, TransportKind, View
from tests.decide.test_transport_choice import DELAY, World

SLOW: dict[TransportKind, float] = {"group": 0.7, "trees": 0.3, "tcp": 0.62, "ltp": 0.66}
FORECAST = RouteForecast(0.6, 0.25, "250 ms along trees (sites), 600 ms as a flat exchange")


def slow_link(**changes: object) -> World:
    world = World(dict(SLOW), exposed=0.65, chooser=TransportChooser(("tcp", "ltp", "trees")), routes=FORECAST)
    return replace(world, **changes)


def test_trees_that_are_predicted_to_be_better_are_opened_measured_and_kept() -> None:
    world = slow_link().run(60)
    assert world.chooser.use == world.used[-1] == "trees"
    assert set(world.used) == {"group", "trees"}
    assert world.reasons == [
        "trees would save about 412 ms of a step of 700 ms (250 ms along trees (sites), 600 ms as a flat exchange): "
        "opening trees",
        "trees would save about 412 ms of a step of 700 ms (250 ms along trees (sites), 600 ms as a flat exchange): "
        "measuring trees",
        "300 ms a step over trees, 700 ms over group",
    ]


def test_a_level_that_trees_cannot_sum_is_compared_with_the_nearest_one() -> None:
    world = slow_link(level="topk:0.1+int8").run(60)
    assert world.chooser.use == "trees"


def test_trees_that_take_longer_are_left_and_tried_late() -> None:
    world = slow_link(seconds={"group": 0.7, "trees": 0.8, "tcp": 0.7, "ltp": 0.7}).run(120)
    assert world.chooser.use == "group"
    assert "800 ms a step over trees, 700 ms over group" in world.reasons
    assert world.used.count("trees") <= OPENING + ENOUGH + DELAY
    world.run(RETRY // 2)
    assert "trees" not in world.used[120:]


def test_a_forecast_of_more_than_the_exchange_takes_is_scaled_down() -> None:
    """Half of 0.65 s on the network, whatever the forecast says of the flat exchange."""
    world = slow_link(routes=RouteForecast(60.0, 30.0, "")).run(20)
    assert world.reasons[0].startswith("trees would save about 365 ms of a step of 700 ms")


def test_where_trees_are_not_better_that_is_said_once_and_again_after_a_change() -> None:
    world = slow_link(trip=0.0002, routes=RouteForecast(0.0, None, "links are about equal")).run(100)
    assert set(world.used) == {"group"}
    assert world.reasons == ["sums stay between all ranks: links are about equal"]
    world.changes = 1
    world.run(100)
    assert len(world.reasons) == 2


def test_a_wire_does_not_wait_for_the_forecast_and_trees_are_tried_after_it() -> None:
    world = slow_link(routes=None).run(ENOUGH + DELAY)
    assert "tcp" in world.asked
    world.run(40)
    assert world.chooser.use == "tcp"
    world.routes = FORECAST
    world.run(40)
    assert world.chooser.use == "trees"


def test_where_a_rank_cannot_open_trees_the_job_stays_and_says_so_once() -> None:
    world = slow_link(opens=False).run(200)
    assert set(world.used) == {"group"}
    assert world.reasons.count("trees is not possible here; gradients stay on group") == 1


def test_after_a_change_that_makes_steps_over_trees_longer_the_group_is_measured_again() -> None:
    world = slow_link().run(60)
    assert world.chooser.use == "trees"
    world.changes, world.seconds = 1, {"group": 0.4, "trees": 0.9, "tcp": 0.9, "ltp": 0.9}
    world.run(60)
    assert world.chooser.use == "group"


def test_a_job_that_begins_with_another_wire_goes_back_to_that() -> None:
    chooser = TransportChooser(("trees",), "tcp")
    assert chooser.use == "tcp"
    facts, view = StepFacts(0.7, 0.65, 0.65, 400_000, 2), View(LinkView(rtprop=0.02))
    used: list[TransportKind] = []
    ran: TransportKind = "tcp"
    for _ in range(60):
        seconds = 0.9 if ran == "trees" else 0.7
        step = TransportStep(ran, Level(), replace(facts, seconds=seconds), view, 4, lambda kind: 2, routes=FORECAST)
        ran = chooser.take(step, {"trees"}, ()).use
        used.append(ran)
    assert set(used) == {"tcp", "trees"}
    assert used[-1] == chooser.use == "tcp"


KINDS: tuple[TransportKind, ...] = ("group", "tcp", "ltp", "trees")


@settings(max_examples=60, deadline=None)
@example(  # a wire that fails when it is the way back from trees
    seconds={"group": 1.984375, "tcp": 1.0, "ltp": 1.0, "trees": 2.0},
    opens_after={"group": [1, 1, 1], "tcp": [1, 1, 1], "ltp": [1, 1, 1], "trees": [1, 1, 23]},
    fails={"group": None, "tcp": 0, "ltp": None, "trees": None},
    noise=0.25,
    seed=0,
)
@given(
    seconds=st.fixed_dictionaries({kind: st.floats(0.05, 2.0) for kind in KINDS}),
    opens_after=st.fixed_dictionaries({kind: st.lists(st.integers(1, 30), min_size=3, max_size=3) for kind in KINDS}),
    fails=st.fixed_dictionaries({kind: st.sampled_from([None, None, None, 0, 1, 2]) for kind in KINDS}),
    noise=st.floats(0.0, 0.4),
    seed=st.integers(0, 1000),
)
def test_whatever_opens_late_fails_or_is_slow_no_rank_uses_what_another_has_not(
    seconds: dict[TransportKind, float],
    opens_after: dict[TransportKind, list[int]],
    fails: dict[TransportKind, int | None],
    noise: float,
    seed: int,
) -> None:
    """Three ranks in virtual time: each opens what it is told to after some steps, or fails to."""
    chooser, draw = TransportChooser(("tcp", "ltp", "trees")), random.Random(seed)
    coming: list[TransportKind] = ["group"] * DELAY
    asked: dict[TransportKind, int] = {}
    refused: set[TransportKind] = set()
    foreign = 0  # steps in a row that were not carried by what the job uses
    for step in range(300):
        ran = coming.pop(0)
        ready = {kind for kind, at in asked.items() if step >= at + max(opens_after[kind]) and fails[kind] is None}
        failed = {kind for kind, at in asked.items() if fails[kind] is not None and step >= at + min(opens_after[kind])}
        assert ran == "group" or ran in ready, "every rank has what carries a step"
        took = seconds[ran] * (1 + noise * draw.uniform(-1, 1))
        facts = StepFacts(took, 0.9 * took, 0.9 * took, 400_000, 2)
        view = View(LinkView(rtprop=0.05, bandwidth=3e6))
        choice = chooser.take(
            TransportStep(ran, Level.parse("int8"), facts, view, 3, lambda kind: 2, routes=FORECAST), ready, failed
        )
        assert choice.use == "group" or choice.use in ready
        assert choice.prepare not in refused, "what failed is not asked for again"
        if choice.prepare != "group":
            asked.setdefault(choice.prepare, step)
        if choice.reason.endswith(f"gradients stay on {chooser.use}"):
            refused.add(choice.reason.partition(" ")[0])  # type: ignore[arg-type]
        coming.append(choice.use)
        foreign = foreign + 1 if ran != chooser.use else 0
        assert foreign <= OPENING + MOST + 2 * DELAY, "a trial ends"
    kept = chooser.use
    if kept != "group" and noise == 0.0:
        assert seconds[kept] < seconds["group"]


@pytest.mark.parametrize("seed", range(5))
def test_noise_does_not_make_it_keep_trees_that_are_no_better(seed: int) -> None:
    world = slow_link(seconds=dict.fromkeys(KINDS, 0.7), noise=0.2)
    world._random = random.Random(seed)
    world.run(300)
    # What noise kept may be left once, for the wire of which a gain is predicted.
    assert world.chooser.use == "group" or world.chooser.switches <= 2


INT4, TOPK, SHARED = Level.parse("int4"), Level.parse("topk:0.01+int8"), Level.parse("sharedk:0.01+int8")
# A job with a slow link: int4 gains along trees, but top-k needs no trees, and along them its indices travel first.
LEVELS: dict[tuple[TransportKind, Level], float] = {
    ("group", INT4): 0.7, ("trees", INT4): 0.3, ("group", TOPK): 0.25, ("trees", SHARED): 0.32,
}  # fmt: skip
BY_LEVEL = RouteForecast(0.6, 0.2, "forecast", {INT4: 0.2, SHARED: 0.22})


def levels_job(chooser: TransportChooser, steps: int, warm: int, used: list[tuple[TransportKind, Level]]) -> float:
    """A job whose controller uses top-k from step `warm` on, at 4 % more steps; the last step's time to accuracy."""
    ran: TransportKind = "group"
    level, seconds, forced = INT4, 0.0, None
    for number in range(steps):
        level = forced or ((TOPK if ran == "group" else SHARED) if number >= warm else INT4)
        seconds = LEVELS[ran, level]
        options = tuple(
            LevelOption(one, LEVELS[ran, one], LEVELS[ran, one] - 0.1, price, now, price)
            for one, price, now in (
                (INT4, 1.0, True),
                (TOPK if ran == "group" else SHARED, 1.04, number >= warm),
            )
        )
        used.append((ran, level))
        facts = StepFacts(seconds, seconds - 0.1, seconds - 0.1, 400_000, 2)
        routes = None if ran == "trees" else replace(BY_LEVEL, flat=seconds - 0.1)
        step = TransportStep(
            ran, level, facts, View(LinkView(rtprop=0.0002)), 4, lambda kind: 2, routes=routes, options=options
        )
        choice = chooser.take(step, {"trees"}, ())
        ran, forced = choice.use, choice.level
    return seconds * (1.0 if level == INT4 else 1.04)


def test_trees_that_gain_only_until_the_warm_up_ends_are_not_opened() -> None:
    """Along trees int4 takes 0.3 s instead of 0.7, but without them top-k will take 0.26 s to the same progress."""
    used: list[tuple[TransportKind, Level]] = []
    assert levels_job(TransportChooser(("trees",)), 200, 60, used) == pytest.approx(0.25 * 1.04)
    assert {kind for kind, _ in used} == {"group"}


def test_trees_are_tried_at_the_level_that_suits_them_and_compared_by_time_to_accuracy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(LEVELS, ("group", TOPK), 0.5)
    used: list[tuple[TransportKind, Level]] = []
    chooser = TransportChooser(("trees",))
    levels_job(chooser, 60, 0, used)
    assert chooser.use == "trees"
    tried = [level for kind, level in used if kind == "trees"]
    assert tried[: OPENING + ENOUGH] == [INT4] * (OPENING + ENOUGH), "0.3 s at int4 are less than 0.32 x 1.04"


def test_a_price_that_eats_the_gain_speaks_against_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flat exchange at int4 takes a tenth longer than trees at a level that needs a third more steps."""
    monkeypatch.setitem(LEVELS, ("group", INT4), 0.35)
    options = (LevelOption(INT4, 0.35, 0.25), LevelOption(TOPK, 0.34, 0.24, 1.3, summed=1.3))
    routes = RouteForecast(0.25, 0.19, "forecast", {SHARED: 0.19})
    chooser, facts = TransportChooser(("trees",)), StepFacts(0.35, 0.25, 0.25, 400_000, 2)
    view = View(LinkView(rtprop=0.0002))
    for _ in range(40):
        step = TransportStep("group", INT4, facts, view, 4, lambda kind: 2, routes=routes, options=options)
        assert chooser.take(step, {"trees"}, ()).use == "group"


def test_trees_that_turn_out_behind_the_best_flat_level_are_left_and_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trees promise sharedk in 0.15 s, and it takes 0.5: the flat exchange at top-k was predicted to take 0.25."""
    monkeypatch.setitem(LEVELS, ("trees", SHARED), 0.5)
    monkeypatch.setitem(LEVELS, ("trees", INT4), 0.2)
    monkeypatch.setattr(
        "tests.decide.test_tree_choice.BY_LEVEL", replace(BY_LEVEL, by_level={INT4: 0.05, SHARED: 0.05})
    )
    used: list[tuple[TransportKind, Level]] = []
    chooser = TransportChooser(("trees",))
    took = levels_job(chooser, 300, 60, used)
    assert ("trees", SHARED) in used
    assert chooser.use == "group"
    assert took == pytest.approx(0.25 * 1.04)
    changes = sum(one[0] != other[0] for one, other in pairwise(used))
    assert changes == 2, "to trees, and back once"


def early_job(chooser: TransportChooser, trees: float, steps: int, known_at: int) -> list[TransportKind]:
    """A job at int4, 0.7 s a step, whose top-k takes 0.25 s but has a price from step `known_at` on only; what carried
    each step."""
    ran: TransportKind = "group"
    used: list[TransportKind] = []
    level: Level = INT4
    for number in range(steps):
        known = number >= known_at
        taken = {INT4: trees if ran == "trees" else 0.7, TOPK: 0.25, SHARED: 0.6}
        sparse = SHARED if ran == "trees" else TOPK
        options = (
            LevelOption(INT4, taken[INT4], taken[INT4] - 0.1),
            LevelOption(sparse, taken[sparse], taken[sparse] - 0.1, 1.04, known, 1.04, known),
        )
        used.append(ran)
        facts = StepFacts(taken[level], taken[level] - 0.1, taken[level] - 0.1, 400_000, 2)
        routes = None if ran == "trees" else RouteForecast(0.6, trees - 0.1, "forecast", {INT4: trees - 0.1})
        step = TransportStep(
            ran, level, facts, View(LinkView(rtprop=0.0002)), 4, lambda kind: 2, routes=routes, options=options,
            price_of=lambda one, known=known: (1.04 if one == TOPK else 1.0) if known or one == INT4 else None,
        )  # fmt: skip
        choice = chooser.take(step, {"trees"}, ())
        ran = choice.use
        level = choice.level or INT4
        if not chooser.trying and ran == "group" and "trees" in used:
            level = TOPK if known else INT4
    return used


def test_trees_with_a_large_gain_are_not_kept_waiting_for_the_prices_of_sparse_levels() -> None:
    used = early_job(TransportChooser(("trees",)), 0.3, 20, 1000)
    assert "trees" in used[: ENOUGH + 1]


def test_a_small_gain_waits_until_all_prices_are_known() -> None:
    assert set(early_job(TransportChooser(("trees",)), 0.55, 60, 1000)) == {"group"}


def test_trees_that_were_opened_early_are_left_when_a_flat_level_turns_out_to_be_cheap() -> None:
    chooser = TransportChooser(("trees",))
    used = early_job(chooser, 0.4, 120, 50)
    assert used[49] == "trees"
    assert chooser.use == "group", "top-k takes 0.25 x 1.04 between all ranks, as was predicted then, trees 0.4"
