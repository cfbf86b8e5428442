"""Translating controller: sends other levels than a controller chooses, without the controller noticing.

The inner controller gets the footprints of what would be sent, and is told what that is, so that a level that is
replaced promises it nothing and has its substitute's price; and step facts with the level that it had chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gradwire.decide.base import Controller, Job, options_of, price_of
from gradwire.level import Level
from gradwire.types import Bucket, Decision, Footprint, LevelOption, StepFacts, View


class TranslatingController:
    """Replaces each level that `inner` chooses by `translate(level)`."""

    def __init__(self, inner: Controller, translate: Callable[[Level], Level]) -> None:
        self._inner, self._translate = inner, translate
        # Level sent -> the level that the inner controller had chosen, most recent choice.
        self._original: dict[Level, Level] = {}
        # The last job and its translation.
        self._jobs: tuple[Job, Job] | None = None

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        if facts.level in self._original:
            facts = replace(facts, level=self._original[facts.level])
        decision = self._inner.decide(self._translated(job), view, facts, now)
        level = self._translate(decision.level)
        if level == decision.level:
            self._original.pop(level, None)
            return decision
        self._original[level] = decision.level
        return replace(decision, level=level, reason=self._explain(decision))

    def options(self) -> tuple[LevelOption, ...] | None:
        """The inner controller's, with the levels that would be sent."""
        known = options_of(self._inner)
        return None if known is None else tuple(replace(one, level=self._translate(one.level)) for one in known)

    def price(self, level: Level) -> float | None:
        """The inner controller's, of the level that would be sent."""
        return price_of(self._inner, self._translate(level))

    def _explain(self, decision: Decision) -> str:
        """The reason of a decision whose level was replaced."""
        return decision.reason

    def _translated(self, job: Job) -> Job:
        if self._jobs is None or self._jobs[0] is not job:

            def footprint(level: Level, buckets: Sequence[Bucket]) -> Sequence[Footprint]:
                return job.footprint(self._translate(level), buckets)

            self._jobs = job, replace(job, footprint=footprint, sends=lambda one: job.sends(self._translate(one)))
        return self._jobs[1]
