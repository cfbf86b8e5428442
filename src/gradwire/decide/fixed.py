"""Fixed: the configured level at every step after a warm-up.

Early gradients do not bear a sparse or low-rank level (decide/warmup.py says why). During the warm-up a sparse level
sends more, as DGC's does, and a low-rank level is replaced by a dense one.

It depends on no measurement, so ranks agree without communication. It is the baseline for adaptive controllers.
"""

from __future__ import annotations

from dataclasses import replace

from gradwire.decide.base import Job
from gradwire.decide.warmup import DENSE, MILD_RANK
from gradwire.level import Level
from gradwire.types import Decision, StepFacts, View

# DGC starts with a quarter of the gradient and reduces the share exponentially to the configured one.
WARMUP_START = 0.25


class Fixed:
    """Always the same level."""

    def __init__(self, level: Level, world_size: int, warmup: int = 0) -> None:
        self._level = level
        self._world_size = world_size
        harsh = level.sparse or (level.select == "lowrank" and level.rank < MILD_RANK)
        self._warmup = warmup if harsh else 0

    def at(self, step: int) -> Decision:
        if self._world_size == 1:
            return Decision(Level(), "a job of one rank sends nothing")
        if self._level.off:
            return Decision(self._level, "the configuration sets level = off")
        if step < self._warmup and self._level.select == "lowrank":
            return Decision(DENSE, f"warm-up, {self._level} from step {self._warmup} on")
        if step < self._warmup and self._level.ratio < WARMUP_START:
            ratio = WARMUP_START * (self._level.ratio / WARMUP_START) ** (step / self._warmup)
            level = replace(self._level, ratio=float(f"{ratio:.3g}"))
            return Decision(level, f"warm-up to {self._level}, step {step} of {self._warmup}")
        return Decision(self._level, f"the configuration sets level = {self._level}")


class FixedLevel:
    """A fixed level as a controller, where another controller decides the local steps."""

    def __init__(self, level: Level) -> None:
        self._decision = Decision(level, f"the configuration sets level = {level}")

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        return self._decision
