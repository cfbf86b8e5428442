"""Summable: any controller, kept to levels whose payloads add up inside a tree.

Its decisions are translated: local top-k becomes top-k at places that all ranks share, low rank becomes int4. The
controller goes on thinking in its own ladder, with the translated levels' footprints, so it sees what would be sent;
and of steps that ran it is told the level that it meant.
"""

from __future__ import annotations

from dataclasses import replace

from gradwire.decide.base import Controller, Job
from gradwire.level import Level
from gradwire.types import Bucket, Decision, Footprint, StepFacts, View


def summable(level: Level) -> Level:
    """The nearest level that adds up: as many bytes or fewer, but for low rank."""
    if level.select == "lowrank":
        return Level(values="int4")
    select = "sharedk" if level.sparse and level.select != "randk" else level.select
    return Level(select, level.ratio, 0, level.values)


class SummableController:
    """Translates between a controller and a plan."""

    def __init__(self, inner: Controller) -> None:
        self._inner = inner
        # What the controller meant by each level that it was translated to, the last time.
        self._meant: dict[Level, Level] = {}
        # The job that was translated last, and its translation.
        self._jobs: tuple[Job, Job] | None = None

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        if facts.level in self._meant:
            facts = replace(facts, level=self._meant[facts.level])
        decision = self._inner.decide(self._translated(job), view, facts, now)
        level = summable(decision.level)
        self._meant[level] = decision.level
        return replace(decision, level=level)

    def _translated(self, job: Job) -> Job:
        if self._jobs is None or self._jobs[0] is not job:

            def footprint(level: Level, bucket: Bucket) -> Footprint:
                return job.footprint(summable(level), bucket)

            self._jobs = job, replace(job, footprint=footprint)
        return self._jobs[1]
