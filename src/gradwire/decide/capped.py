"""Capped: limits any controller to levels that are not lossier than the user's cap, the setting `lossiest`.

A lossier decision is replaced by the cap, and the reason says so. The inner controller gets the footprints of what
would be sent, so that a level beyond the cap promises it nothing, and step facts with the level that it had chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradwire.decide.base import Controller, Job
from gradwire.decide.lossiness import limited
from gradwire.level import Level
from gradwire.types import Bucket, Decision, Footprint, StepFacts, View


class CappedController:
    """Wraps a controller whose user set a cap."""

    def __init__(self, inner: Controller, cap: Level) -> None:
        self._inner, self._cap = inner, cap
        # Level sent -> the lossier level that the inner controller had chosen, most recent choice.
        self._original: dict[Level, Level] = {}
        # The last job and its translation.
        self._jobs: tuple[Job, Job] | None = None

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        if facts.level in self._original:
            facts = replace(facts, level=self._original[facts.level])
        decision = self._inner.decide(self._translated(job), view, facts, now)
        level = limited(decision.level, self._cap)
        if level == decision.level:
            self._original.pop(level, None)
            return decision
        self._original[level] = decision.level
        reason = f"lossiest = {self._cap} forbids {decision.level}: {decision.reason}"
        return replace(decision, level=level, reason=reason)

    def _translated(self, job: Job) -> Job:
        if self._jobs is None or self._jobs[0] is not job:

            def footprint(level: Level, buckets: Sequence[Bucket]) -> Sequence[Footprint]:
                return job.footprint(limited(level, self._cap), buckets)

            self._jobs = job, replace(job, footprint=footprint)
        return self._jobs[1]
