"""Fixed: the configured level at every step, with DGC's warm-up for sparse levels where configured.

It depends on no measurement, so ranks agree without communication. It is the baseline for adaptive controllers.
"""

from __future__ import annotations

from dataclasses import replace

from gradwire.decide.base import Job
from gradwire.level import Level
from gradwire.types import Decision, StepFacts, View

# DGC starts with a quarter of the gradient and reduces the share exponentially to the configured one.
WARMUP_START = 0.25


class Fixed:
    """Always the same level."""

    def __init__(self, level: Level, world_size: int, warmup: int = 0) -> None:
        self._level = level
        self._world_size = world_size
        self._warmup = warmup if level.sparse else 0

    def at(self, step: int) -> Decision:
        if self._world_size == 1:
            return Decision(Level(), "a job of one rank sends nothing")
        if self._level.off:
            return Decision(self._level, "the configuration sets level = off")
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
