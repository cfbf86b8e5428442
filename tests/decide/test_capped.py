"""Capped controllers: no decision is lossier than the user's cap, the reason says so, and the level can fall again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gradwire.decide import registry
from gradwire.decide.auto import Auto
from gradwire.decide.base import Controller, Job
from gradwire.decide.capped import CappedController
from gradwire.decide.dc2 import Dc2
from gradwire.decide.lossiness import at_most, lossiness
from gradwire.decide.netsense import NetSense
from gradwire.decide.registry import make_controller
from gradwire.decide.summable_controller import SummableController, summable
from gradwire.exchange.select import FootprintTable
from gradwire.level import Level
from gradwire.types import Decision, StepFacts, View
from gradwire.units import Rate
from tests.decide.test_controllers import World, buckets, steady

CAPS = ["off", "fp16", "int8", "int4", "lowrank:4", "topk:0.1", "topk:0.03+int8"]
JOB = Job(8, buckets(), FootprintTable(8))


class Scripted:
    """Chooses the given levels one after another; keeps the level that each step is said to have had."""

    def __init__(self, *levels: str) -> None:
        self._levels = [Level.parse(text) for text in levels]
        self.told: list[Level | None] = []
        self.jobs: list[Job] = []

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        self.told.append(facts.level)
        self.jobs.append(job)
        return Decision(self._levels[len(self.told) - 1], "because", version=len(self.told), guarded=True)


def decide(controller: Controller, ran: str) -> Decision:
    return controller.decide(JOB, View.unknown(), StepFacts(level=Level.parse(ran)), 0.0)


@pytest.mark.parametrize("cap", CAPS)
@pytest.mark.parametrize("name", ["auto", "netsense", "dc2"])
def test_no_controller_exceeds_the_cap_on_a_slow_network(name: str, cap: str) -> None:
    lossiest = Level.parse(cap)
    controller = CappedController(make_controller(name, lossiest), lossiest)
    world = World(controller, steady(5)).run(80, start=Level())
    assert [str(level) for level in world.levels if not at_most(level, lossiest)] == []
    lossier_than_int8 = lossiness(lossiest) > lossiness(Level.parse("int8"))
    assert not lossier_than_int8 or any(lossiness(level) > lossiness(Level.parse("int8")) for level in world.levels)


@pytest.mark.parametrize(("make", "beyond"), [(Auto, "int8"), (NetSense, "topk:0.03+int8"), (Dc2, "topk:0.03+int8")])
def test_without_the_cap_the_same_network_takes_them_further(make: Callable[[], Controller], beyond: str) -> None:
    """Otherwise the test above checks nothing. `auto` weighs lossiness and stops where more does not pay."""
    levels = World(make(), steady(5)).run(80, start=Level()).levels
    assert not at_most(max(levels, key=lossiness), Level.parse(beyond))


@pytest.mark.parametrize(("name", "steps"), [("auto", 10), ("netsense", 12), ("dc2", 80)])
def test_a_capped_controller_follows_a_network_that_gets_faster(name: str, steps: int) -> None:
    """A ratio of netsense that fell far below the cap would take 58 steps to rise again; dc2 averages delays."""
    cap = Level.parse("int4")
    controller = CappedController(make_controller(name, cap), cap)
    rate = lambda step: float(Rate.from_mbit(5 if step < 100 else 100_000))  # noqa: E731
    world = World(controller, rate, trip=0.0002).run(100 + steps)
    assert world.levels[99] == cap
    assert lossiness(world.levels[-1]) < lossiness(cap)


def test_a_lossier_decision_becomes_the_cap_and_the_reason_says_so() -> None:
    inner = Scripted("topk:0.01+int8", "int8")
    capped = CappedController(inner, Level.parse("int4"))
    first = decide(capped, "int8")
    assert first == Decision(
        Level.parse("int4"), "lossiest = int4 forbids topk:0.01+int8: because", version=1, guarded=True
    )
    second = decide(capped, "int4")
    assert second == Decision(Level.parse("int8"), "because", version=2, guarded=True), (
        "an allowed decision is unchanged"
    )


def test_the_inner_controller_is_told_the_level_that_it_chose_and_the_bytes_of_what_is_sent() -> None:
    inner = Scripted("topk:0.01+int8", "int4", "int4")
    capped = CappedController(inner, Level.parse("int4"))
    for ran in ("int8", "int4", "int4"):
        decide(capped, ran)
    assert [str(level) for level in inner.told] == ["int8", "topk:0.01+int8", "int4"]
    seen = inner.jobs[0]
    assert seen.wire_bytes(Level.parse("topk:0.001+int8")) == JOB.wire_bytes(Level.parse("int4"))
    assert seen.wire_bytes(Level.parse("int8")) == JOB.wire_bytes(Level.parse("int8"))
    assert inner.jobs[1] is seen, "the same job keeps its cached sizes"


@pytest.mark.parametrize("cap", ["int8", "sharedk:0.03+int8"])
def test_with_a_plan_the_capped_levels_can_be_summed(cap: str) -> None:
    lossiest = Level.parse(cap)
    controller = CappedController(SummableController(make_controller("auto", lossiest)), lossiest)
    levels = World(controller, steady(5)).run(60).levels
    assert all(at_most(level, lossiest) and summable(level) == level for level in levels)


class Takes:
    def __init__(self, lossiest: Level | None = None) -> None:
        self.lossiest = lossiest

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        return Decision(Level(), "")


class TakesNothing(Takes):
    def __init__(self) -> None:
        super().__init__(Level.parse("fp16"))


class Entry:
    """An entry point of another package."""

    value = "other:Controller"

    def __init__(self, made: type) -> None:
        self._made = made

    def load(self) -> type:
        return self._made


@pytest.mark.parametrize(("made", "given"), [(Takes, "int4"), (TakesNothing, "fp16")])
def test_the_cap_is_passed_to_constructors_that_take_it(
    monkeypatch: pytest.MonkeyPatch, made: type, given: str
) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda **_: [Entry(made)])
    controller = make_controller("other", Level.parse("int4"))
    assert isinstance(controller, Takes)
    assert controller.lossiest == Level.parse(given)
