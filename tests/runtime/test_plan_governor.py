"""Where plans decide the level, a step is told with the level that its trees had."""

from __future__ import annotations

import pytest

from gradwire.decide.base import Job
from gradwire.events import Stepped
from gradwire.level import Level
from gradwire.runtime.governor import Instruments
from gradwire.runtime.plan_governor import PlanGovernor
from gradwire.sense.step_timer import StepTimer
from gradwire.transport.traffic import Traffic
from gradwire.types import Bucket, Decision, Footprint, StepFacts, View
from tests.runtime.test_governor import Hand, bucket

OFF, INT8 = Level(), Level(values="int8")


class Trees:
    """What a plan says, and what its last step used."""

    def __init__(self) -> None:
        self.level: Level | None = OFF
        self.used_level: Level | None = None
        self.is_coordinator = True

    def request_level(self, decision: Decision) -> None:
        """Nothing comes of it."""


class Listening:
    """A controller that keeps the level of the steps it was told of."""

    def __init__(self) -> None:
        self.told: list[Level | None] = []

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        self.told.append(facts.level)
        return Decision(OFF, "as it is")


def footprint(level: Level, bucket: Bucket) -> Footprint:
    return Footprint(bucket.nbytes, 2)


@pytest.mark.parametrize(("used", "told"), [(None, OFF), (INT8, INT8)])
def test_a_step_that_an_epoch_gave_another_level_is_told_with_that_one(used: Level | None, told: Level) -> None:
    hand, watch, trees, controller = Hand(), StepTimer(), Trees(), Listening()
    parts = Instruments(watch, hand, hand, Traffic(0, hand, hand)), footprint
    governor = PlanGovernor(controller, Decision(OFF, "start"), trees, parts, 2)  # type: ignore[arg-type]
    for step in range(3):
        hand.time += 1.0
        governor.decide(bucket(step))
        watch.bucket_ready(hand.time, 4000)
        watch.operation(hand.time, hand.time + 0.1, 1000)
        trees.used_level = used
    governor.finish()
    levels = [event.level for event in hand.events if isinstance(event, Stepped)]
    assert levels
    assert set(levels) == {str(told)}
    assert controller.told
    assert set(controller.told) == {told}
