"""PlanGovernor: reads the level from the plan in force, for jobs whose ranks may fail and rejoin.

A change of level is a change of plan: the coordinator's controller proposes it, and it is announced, acknowledged and
voted on like every plan (`plan.membership`). So all members change at the same step or none does, even if a member is
lost meanwhile, and a rank that joins receives the level with the plan. There are no pulses: the controller sees the
coordinator's own steps. Where gradwire chooses the number of local steps too, that is voted on by the round's own
exchange (local_steps/period_vote.py), which asks for the coordinator's proposal here and says what came of it.
"""

from __future__ import annotations

from dataclasses import replace

from gradwire.decide.base import Controller, Job
from gradwire.decide.cost_model import predict
from gradwire.decide.ladder import LADDER
from gradwire.decide.period_controller import PeriodController
from gradwire.events import Sensed
from gradwire.level import Level
from gradwire.runtime.governor import GovernorContext, merge, sendable
from gradwire.runtime.guard_reporter import GuardReporter
from gradwire.sense.estimator import Estimator, StepObservation
from gradwire.sites.reducer import TreeReducer
from gradwire.types import Bucket, Decision, StepFacts


class PlanGovernor:
    """Reads the level from the plan; on the coordinator, asks a controller which level to propose."""

    def __init__(self, context: GovernorContext, controller: Controller, start: Decision, reducer: TreeReducer) -> None:
        self._context, self._controller, self._reducer = context, controller, reducer
        self._proposal = start
        self._estimator = Estimator()
        self._guard_reporter = GuardReporter(context.sink, context.unit)
        self._buckets: dict[int, Bucket] = {}
        self._ready = 0.0
        self._step = 0
        self._coordinates = False
        self.decision = start
        self.loss = 0.0

    def begin_step(self, bucket: Bucket) -> None:
        step, now = bucket.step, self._context.clock.now()
        facts = self._context.lap(now, self._hops, self._take_loss())
        self._context.report_step(step - 1, facts, self._used)
        coordinated, self._coordinates = self._coordinates, facts is not None and self._reducer.is_coordinator
        if facts is not None and self._coordinates:
            if not coordinated and isinstance(self._controller, PeriodController):
                self._controller.resume(self._used, self.decision.sync_every)
            self._ask_controller(step, facts, now)
        self._context.traffic.step_ended(step - 1)
        level = self._reducer.level
        if level is not None and level != self.decision.level:
            own = level == self._proposal.level
            reason = self._proposal.reason if own else "the coordinator of the plan chose this level"
            self.decision = replace(self.decision, level=level, reason=reason, version=self.decision.version + 1)
        self._step, self._buckets, self._ready = step, {bucket.index: bucket}, now

    def add_bucket(self, bucket: Bucket) -> None:
        self._buckets[bucket.index] = bucket
        self._ready = self._context.clock.now()

    def finish(self) -> None:
        facts = self._context.timer.finish(self._hops, self._take_loss())
        self._context.report_step(self._step, facts, self._used)
        self._context.traffic.finish(self._step)

    def close(self) -> None:
        """Nothing to close."""

    def proposed_period(self) -> int | None:
        """The number of local steps that this rank proposes; None unless it coordinates the plan."""
        return self._proposal.sync_every if self._coordinates and self._proposal.sync_every > 1 else None

    def follow(self, sync_every: int) -> None:
        """The next round has this number of local steps, on all ranks."""
        if sync_every != self.decision.sync_every:
            own = self._coordinates and sync_every == self._proposal.sync_every
            reason = self._proposal.reason if own else "the coordinator of the plan chose this number of local steps"
            self.decision = replace(
                self.decision, sync_every=sync_every, reason=reason, version=self.decision.version + 1
            )

    @property
    def _hops(self) -> int:
        buckets = tuple(self._buckets.values())
        return max((one.hops for one in self._context.footprint(self.decision.level, buckets)), default=0)

    @property
    def _used(self) -> Level:
        """The level of the step that ended: the one the trees used, where this rank knows it."""
        return self._reducer.used_level or self.decision.level

    def _take_loss(self) -> float:
        """The loss that the user noted; each note counts for one step."""
        loss, self.loss = self.loss, 0.0
        return loss

    def _ask_controller(self, step: int, facts: StepFacts, now: float) -> None:
        """Propose the level that the controller chooses after this rank's step."""
        context = self._context
        view = self._estimator.update([StepObservation(facts, self._ready)], [], now)
        facts = replace(merge([facts], facts), level=self._used)
        buckets = tuple(bucket for _, bucket in sorted(self._buckets.items()))
        job = Job(self._reducer.world_size or context.world_size, buckets, context.footprint)
        plain = predict(LADDER[0], job, view, facts, self._used, scale=1.0)
        self._proposal = sendable(self._controller.decide(job, view, facts, now))
        self._guard_reporter.report(now, step, self._proposal)
        self._reducer.request_level(self._proposal)
        known = view.group.bandwidth is not None
        context.sink.emit(Sensed.of(now, step, view, facts, plain.step if known else None))
