"""PlanGovernor: which level all ranks use where ranks come and go: the one that the plan in force names.

A change of level is a change of plan: the coordinator's controller wishes for it, and it is announced, acknowledged and
voted on as every plan is (`plan.policy`). So all members change at the same step or none does, whoever is lost on the
way, and a rank that joins is told the level with the plan. No pulses: the controller sees the coordinator's own steps.
"""

from __future__ import annotations

from dataclasses import replace

from gradwire.decide.base import Controller, Job
from gradwire.decide.cost_model import predict
from gradwire.decide.ladder import LADDER
from gradwire.events import Sensed, Stepped
from gradwire.level import Level
from gradwire.runtime.governor import FootprintOf, Instruments, merge, sendable
from gradwire.sense.estimator import Estimator, StepObservation
from gradwire.sites.reducer import TreeReducer
from gradwire.types import Bucket, Decision, StepFacts


class PlanGovernor:
    """Reads the level from the plan; on the coordinator, asks a controller which one to wish for."""

    def __init__(
        self,
        controller: Controller,
        start: Decision,
        planned: TreeReducer,
        parts: tuple[Instruments, FootprintOf],
        world_size: int,
    ) -> None:
        self._controller, self._planned, self._world_size = controller, planned, world_size
        self._decision = self._wish = start
        self._instruments, self._footprint = parts
        self._estimator = Estimator()
        self._buckets: dict[int, Bucket] = {}
        self._ready = 0.0
        self._step = 0
        self.loss = 0.0

    def decide(self, bucket: Bucket) -> Decision:
        now = self._instruments.clock.now()
        if bucket.index == 0:
            self._turn(bucket.step, now)
        self._buckets[bucket.index] = bucket
        self._ready = now
        return self._decision

    def finish(self) -> None:
        self._tell(self._step, self._instruments.stopwatch.finish(self._hops, self._noted()))
        self._instruments.traffic.finish(self._step)

    def close(self) -> None:
        """Nothing is held."""

    @property
    def _hops(self) -> int:
        return max((self._footprint(self._decision.level, b).hops for b in self._buckets.values()), default=0)

    @property
    def _used(self) -> Level:
        """The level of the step that ended: the trees' own, where this rank knows it."""
        return self._planned.used or self._decision.level

    def _noted(self) -> float:
        loss, self.loss = self.loss, 0.0
        return loss

    def _turn(self, step: int, now: float) -> None:
        facts = self._instruments.stopwatch.lap(now, self._hops, self._noted())
        self._tell(step - 1, facts)
        if facts is not None and self._planned.coordinates:
            self._consider(step, facts, now)
        self._instruments.traffic.ended(step - 1)
        self._step, self._buckets = step, {}
        level = self._planned.level
        if level is not None and level != self._decision.level:
            reason = self._wish.reason if level == self._wish.level else "the coordinator of the plan decided so"
            self._decision = Decision(level, reason, self._decision.version + 1)

    def _consider(self, step: int, facts: StepFacts, now: float) -> None:
        """What the controller makes of this rank's step."""
        view = self._estimator.update([StepObservation(facts, self._ready)], [], now)
        facts = replace(merge([facts], facts), level=self._used)
        job = Job(self._world_size, tuple(bucket for _, bucket in sorted(self._buckets.items())), self._footprint)
        plain = predict(LADDER[0], job, view, facts, self._used, scale=1.0)
        self._wish = sendable(self._controller.decide(job, view, facts, now))
        self._planned.wish(self._wish)
        known = view.group.bandwidth is not None
        self._instruments.sink.emit(Sensed.of(now, step, view, facts, plain.step if known else None))

    def _tell(self, step: int, facts: StepFacts | None) -> None:
        if facts is not None:
            now, level = self._instruments.clock.now(), str(self._used)
            self._instruments.sink.emit(Stepped.of(now, step, facts, level, self._world_size))
