"""Summable controller: restricts any controller to levels whose payloads can be summed inside a tree.

Its decisions are translated: top-k becomes a shared mask (sharedk), low rank becomes int4. The inner controller keeps
its own ladder. It gets the footprints of the translated levels, and step facts with the level that it had chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradwire.decide.base import Controller, Job
from gradwire.level import Level
from gradwire.types import Bucket, Decision, Footprint, StepFacts, View


def summable(level: Level) -> Level:
    """The nearest summable level: as many bytes or fewer, except for low rank."""
    if level.select == "lowrank":
        return Level(values="int4")
    select = "sharedk" if level.sparse and level.select != "randk" else level.select
    return Level(select, level.ratio, 0, level.values)


class SummableController:
    """Wraps a controller for use with a plan."""

    def __init__(self, inner: Controller) -> None:
        self._inner = inner
        # Translated level -> the level that the inner controller chose, most recent choice.
        self._original: dict[Level, Level] = {}
        # The last job and its translation.
        self._jobs: tuple[Job, Job] | None = None

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        if facts.level in self._original:
            facts = replace(facts, level=self._original[facts.level])
        decision = self._inner.decide(self._translated(job), view, facts, now)
        level = summable(decision.level)
        self._original[level] = decision.level
        return replace(decision, level=level)

    def _translated(self, job: Job) -> Job:
        if self._jobs is None or self._jobs[0] is not job:

            def footprint(level: Level, buckets: Sequence[Bucket]) -> Sequence[Footprint]:
                return job.footprint(summable(level), buckets)

            self._jobs = job, replace(job, footprint=footprint)
        return self._jobs[1]
