"""Trees as a choice of the transport chooser: opened on a forecast, kept on measured steps, never used by some only."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.decide.transport_choice import PATIENCE, RETRY, TransportChooser
from gradwire.decide.transport_step import TransportStep
from gradwire.decide.transport_trial import ENOUGH, MOST, OPENING
from gradwire.level import Level
from gradwire.types import LinkView, RouteForecast, StepFacts, TransportKind, View
from tests.decide.test_transport_choice import DELAY, World

SLOW: dict[TransportKind, float] = {"group": 0.7, "trees": 0.3, "tcp": 0.66, "ltp": 0.66}
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


def test_another_wire_is_not_tried_before_the_forecast_is_there_but_not_much_later() -> None:
    world = slow_link(routes=None).run(PATIENCE)
    assert set(world.asked) == {"group"}
    world.run(10)
    assert "tcp" in world.asked


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
