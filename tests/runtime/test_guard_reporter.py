"""GuardReporter: every act of the accuracy guard is one event and one warning, on the rank that decides."""

from __future__ import annotations

import logging

import pytest

from gradwire.decide.base import Job
from gradwire.events import Event, Faulted
from gradwire.level import Level
from gradwire.runtime.guard_reporter import GuardReporter
from gradwire.runtime.plan_governor import PlanGovernor
from gradwire.sense.step_timer import StepTimer
from gradwire.transport.lanes.loopback import Loopback
from gradwire.types import Decision, StepFacts, View
from tests.runtime.test_adaptive_governor import CountingController, run
from tests.runtime.test_governor import ManualClock, bucket, governor_context
from tests.runtime.test_plan_governor import PlanLevels, footprint

INT4, INT8 = Level(values="int4"), Level(values="int8")
SEEN = "the loss rose from 1 to 2 at int4; backing off to int8"


class Guarded(CountingController):
    """The guard acts at the third decision and stays with it for three more."""

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        count = len(self.threads)
        super().decide(job, view, facts, now)
        return Decision(INT4, "fast", 0) if count < 2 else Decision(INT8, SEEN, 1, guarded=count < 6)


def acts(events: list[Event]) -> list[str]:
    return [event.detail for event in events if isinstance(event, Faulted) and event.kind == "guard"]


def test_an_act_is_one_event_and_one_warning_however_long_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    reporter = GuardReporter(clock)
    decisions = [
        Decision(INT4, "fast", 1),
        Decision(INT8, SEEN, 2, guarded=True),
        Decision(INT8, "still waiting", 2, guarded=True),
        Decision(INT8, "measuring int8", 2),
        Decision(INT8, "again", 2, guarded=True),
        Decision(Level(), "and again", 3, guarded=True),
    ]
    with caplog.at_level(logging.WARNING, "gradwire"):
        for step, decision in enumerate(decisions):
            reporter.report(float(step), step, decision)
    assert acts(clock.events) == [SEEN, "again", "and again"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 3
    assert caplog.records[0].getMessage() == f"gradwire: compression harmed training, seen at step 1: {SEEN}"


@pytest.mark.parametrize(("unit", "every", "said"), [("round", 1, "compression"), ("exchange", 20, "local steps")])
def test_the_warning_names_what_harmed_and_counts_in_the_units_of_the_session(
    caplog: pytest.LogCaptureFixture, unit: str, every: int, said: str
) -> None:
    """With a number of local steps every step is a round; where gradwire chooses it, gradients are exchanged too."""
    reporter = GuardReporter(ManualClock(), unit)
    with caplog.at_level(logging.WARNING, "gradwire"):
        reporter.report(0.0, 0, Decision(INT8, "fast", 1, sync_every=every))
        reporter.report(1.0, 1, Decision(INT8, SEEN, 2, guarded=True))
    assert caplog.records[0].getMessage() == f"gradwire: {said} harmed training, seen at {unit} 1: {SEEN}"


def test_rank_0_of_a_job_with_pulses_reports_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gradwire"):
        results = run(Loopback(2), [Guarded(), Guarded()], 20)
    assert [acts(events) for _, events, _ in results] == [[SEEN], []]
    assert len(caplog.records) == 1


def test_the_coordinator_of_a_plan_reports_it(caplog: pytest.LogCaptureFixture) -> None:
    clock, timer, trees = ManualClock(), StepTimer(), PlanLevels()
    context = governor_context(timer, clock, footprint)
    governor = PlanGovernor(context, Guarded(), Decision(INT4, "start"), trees)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING, "gradwire"):
        for step in range(12):
            clock.time += 1.0
            governor.begin_step(bucket(step))
            timer.bucket_ready(clock.time, 4000)
            timer.operation(clock.time, clock.time + 0.1, 1000)
    assert acts(clock.events) == [SEEN]
    assert len(caplog.records) == 1
