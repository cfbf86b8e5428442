"""Published controllers with warm-up and guard."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from gradwire.decide.base import Job
from gradwire.decide.protected import ProtectedController
from gradwire.decide.registry import make_controller
from gradwire.level import Level
from gradwire.types import Decision, StepFacts, View
from tests.decide.test_controllers import World, observed, steady

SPARSE = Level.parse("topk:0.002+int8")


class Same:
    """Wants one level, whatever the network."""

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        return Decision(SPARSE, "the network is slow", 7)


def job() -> Job:
    return World(Same(), steady(100)).job


def test_a_sparse_level_comes_after_dense_steps_with_a_falling_share() -> None:
    controller, ran, decisions = ProtectedController(Same()), None, []
    for _ in range(120):
        decisions.append(controller.decide(job(), View.unknown(), replace(observed(), level=ran), 0.0))
        ran = decisions[-1].level
    assert not any(one.level.sparse for one in decisions[:18])
    shares = [one.level.ratio for one in decisions if one.level.sparse]
    assert shares == sorted(shares, reverse=True)
    assert decisions[-1].level == SPARSE
    assert decisions[-1].reason == "the network is slow"
    assert "warm-up, topk:0.002+int8 later" in decisions[0].reason
    versions = [one.version for one in decisions]
    assert versions == sorted(versions)
    changes = {(a.level != b.level, a.version != b.version) for a, b in itertools.pairwise(decisions)}
    assert changes == {(False, False), (True, True)}, "a version for each level"


def test_harm_replaces_the_level_by_a_dense_one_and_is_reported_once() -> None:
    controller, ran, guarded = ProtectedController(Same()), None, []
    for step in range(170):
        facts = replace(observed(2.0 if step < 140 else 6.0), level=ran)
        decision = controller.decide(job(), View.unknown(), facts, 0.0)
        ran = decision.level
        guarded.append(decision.guarded)
    assert sum(guarded) == 1
    assert decision.level == Level(values="int4")
    assert "backing off to int4" in decision.reason


@pytest.mark.parametrize("name", ["netsense", "dc2"])
def test_the_published_controllers_are_protected(name: str) -> None:
    made = make_controller(name)
    assert isinstance(made, ProtectedController)
    world = World(made, steady(50)).run(150)
    assert not any(level.sparse for level in world.levels[:18])
    assert world.levels[-1].sparse
    capped = World(make_controller(name, Level.parse("topk:0.1+int8")), steady(50)).run(150)
    assert capped.levels[-1].ratio >= 0.05
