"""Protected: a published controller with gradwire's warm-up and accuracy guard. Pure.

NetSenseML and DC2 decide by the network alone. Their level is replaced where the warm-up does not allow it yet
(decide/warmup.py), and where the accuracy guard forbids it, by the least lossy dense level that is allowed.
"""

from __future__ import annotations

from typing import Final

from gradwire.decide.accuracy_guard import AccuracyGuard
from gradwire.decide.base import Controller, Job
from gradwire.decide.warmup import warmed
from gradwire.level import Level
from gradwire.types import Decision, StepFacts, View

# What replaces a forbidden level: the first that the guard allows.
EXACT_ENOUGH: Final = (Level(values="int4"), Level(values="int8"), Level())


class ProtectedController:
    """Wraps a controller; counts versions itself, because a replaced level changes without the inner one."""

    def __init__(self, inner: Controller) -> None:
        self._inner = inner
        self._guard = AccuracyGuard()
        self._step = self._version = 0
        self._level: Level | None = None

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        self._step += 1
        chosen = self._inner.decide(job, view, facts, now)
        ran = facts.level or self._level
        harmed = ran is not None and self._guard.check(self._step, ran, facts)
        level, reason = warmed(self._step, chosen.level), chosen.reason
        if level != chosen.level:
            reason = f"warm-up, {chosen.level} later: {reason}"
        if not self._guard.allows(level):
            level = next(one for one in EXACT_ENOUGH if self._guard.allows(one))
            reason = f"{self._guard.reason}; backing off to {level}"
        if level != self._level:
            self._level, self._version = level, self._version + 1
        return Decision(level, reason, self._version, guarded=harmed)
