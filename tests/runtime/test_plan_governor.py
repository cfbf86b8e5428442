"""PlanGovernor: reports steps with the level that their trees used; only the coordinator proposes round lengths."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gradwire.decide.base import Job
from gradwire.events import Stepped
from gradwire.level import Level
from gradwire.runtime.plan_governor import PlanGovernor
from gradwire.sense.step_timer import StepTimer
from gradwire.types import Bucket, Decision, Footprint, StepFacts, View
from tests.runtime.test_governor import ManualClock, bucket, governor_context

OFF, INT8 = Level(), Level(values="int8")


class PlanLevels:
    """The plan's level, and the level of its last step."""

    def __init__(self) -> None:
        self.level: Level | None = OFF
        self.used_level: Level | None = None
        self.is_coordinator = True
        self.world_size: int | None = None

    def request_level(self, decision: Decision) -> None:
        """The proposal is ignored."""


class ReportedLevels:
    """A controller that keeps the level of every step it is given."""

    def __init__(self) -> None:
        self.levels: list[Level | None] = []
        self.world_sizes: list[int] = []

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        self.levels.append(facts.level)
        self.world_sizes.append(job.world_size)
        return Decision(OFF, "unchanged")


def footprint(level: Level, buckets: Sequence[Bucket]) -> list[Footprint]:
    return [Footprint(bucket.nbytes, 2) for bucket in buckets]


@pytest.mark.parametrize(("used", "reported"), [(None, OFF), (INT8, INT8)])
def test_a_step_is_reported_with_the_level_that_its_trees_used(used: Level | None, reported: Level) -> None:
    clock, timer, trees, controller = ManualClock(), StepTimer(), PlanLevels(), ReportedLevels()
    context = governor_context(timer, clock, footprint)
    governor = PlanGovernor(context, controller, Decision(OFF, "start"), trees)  # type: ignore[arg-type]
    for step in range(3):
        clock.time += 1.0
        governor.begin_step(bucket(step))
        timer.bucket_ready(clock.time, 4000)
        timer.operation(clock.time, clock.time + 0.1, 1000)
        trees.used_level = used
    governor.finish()
    levels = [event.level for event in clock.events if isinstance(event, Stepped)]
    assert levels
    assert set(levels) == {str(reported)}
    assert controller.levels
    assert set(controller.levels) == {reported}


def test_the_controller_knows_how_many_ranks_take_part_now() -> None:
    clock, timer, trees, controller = ManualClock(), StepTimer(), PlanLevels(), ReportedLevels()
    context = governor_context(timer, clock, footprint)
    governor = PlanGovernor(context, controller, Decision(OFF, "start"), trees)  # type: ignore[arg-type]
    for step, members in enumerate((None, None, 5, 3)):
        clock.time += 1.0
        trees.world_size = members
        governor.begin_step(bucket(step))
        timer.bucket_ready(clock.time, 4000)
        timer.operation(clock.time, clock.time + 0.1, 1000)
    assert controller.world_sizes == [context.world_size, 5, 3]


class LongRounds(ReportedLevels):
    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        return Decision(OFF, "long rounds", sync_every=50)


@pytest.mark.parametrize("coordinates", [True, False])
def test_only_the_coordinator_proposes_a_number_of_local_steps_and_all_follow_what_came_of_it(
    coordinates: bool,
) -> None:
    clock, timer, trees = ManualClock(), StepTimer(), PlanLevels()
    trees.is_coordinator = coordinates
    start = Decision(OFF, "start", sync_every=10)
    governor = PlanGovernor(governor_context(timer, clock, footprint), LongRounds(), start, trees)  # type: ignore[arg-type]
    proposed = []
    for step in range(2):
        clock.time += 1.0
        governor.begin_step(bucket(step))
        timer.bucket_ready(clock.time, 4000)
        timer.operation(clock.time, clock.time + 0.1, 1000)
        proposed.append(governor.proposed_period())
    assert proposed == [None, 50 if coordinates else None], "nothing is proposed before a round was measured"
    governor.follow(50)
    assert governor.decision.sync_every == 50
    assert ("long rounds" in governor.decision.reason) is coordinates
    trees.level = INT8
    governor.begin_step(bucket(2))
    assert (governor.decision.level, governor.decision.sync_every) == (INT8, 50)
