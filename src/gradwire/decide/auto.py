"""Auto: the rung with the best predicted time to accuracy. The default, and nothing to set.

    1. predict a step's time at every rung of the ladder
    2. multiply by what the rung's lossiness costs in steps, leave out what the guard forbids, and take the least lossy
       rung that comes within 3 % of the best: rungs that hide behind compute tie on time, and `off` wins where the
       network is not what slows training
    3. towards less loss move when that rung is found; towards more only when staying costs 8 % or more; and, unless
       the gain is large, only when two decisions in a row agree and the last change is some steps ago
    4. where traffic is too small to tell whether the network got faster, send more of it for one step now and then

The reason names the numbers that decided.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gradwire.decide.base import Job
from gradwire.decide.cost import Prediction, predict
from gradwire.decide.guard import Guard
from gradwire.decide.ladder import LADDER, index_of
from gradwire.flow import Decision, StepFacts, View
from gradwire.level import Level
from gradwire.units import Rate, Seconds

# Estimates wander by a few per cent on a steady network: the band between these two keeps a rung from flapping.
AS_GOOD: Final = 0.03
WORSE: Final = 0.08
# A change of this size is acted on at once, others when seen twice, and lossier ones not soon after another change.
AT_ONCE: Final = 0.5
HOLD: Final = 10
SCALE_GAIN: Final = 0.25
# Steps without word on the bandwidth before one is spent on asking, and how much longer it may be for each of them.
ASK_AFTER: Final = 50
ASK_COST: Final = 0.005
# What a job sends before anything is measured: four times fewer bytes than dense, and hardly lossy.
START: Final = Level(values="int8")


class Auto:
    """Keeps the current rung, the machine's speed and the guard."""

    def __init__(self, start: Level | None = None) -> None:
        self._current = start or START
        self._version = 0
        self._scale = 1.0
        self._guard = Guard()
        self._proposed: Level | None = None
        self._step = 0
        self._moved = -HOLD
        self._silent = 0

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        self._step += 1
        if view.group.bandwidth is None:
            return self._stay("the network has not been measured yet")
        self._learn_speed(job, facts)
        predictions = [predict(r, job, view, facts, self._current, self._scale) for r in LADDER]  # 1
        here = predictions[index_of(self._current)]
        limit = self._guard.check(self._step, self._current, index_of(self._current), facts.residual, facts.loss)
        allowed = predictions if limit is None else predictions[: limit + 1]
        least = min(p.to_accuracy for p in allowed)
        best = next(p for p in allowed if p.to_accuracy <= (1 + AS_GOOD) * least)  # 2
        if here not in allowed:
            moved = self._move(best.rung.level, f"{self._guard.reason}; backing off to {best.rung.level}")
            return replace(moved, guarded=True)
        lossier = allowed.index(best) > allowed.index(here)
        self._silent = self._silent + 1 if view.group.age > 0 else 0
        if best is here or (lossier and here.to_accuracy <= (1 + WORSE) * least):  # 3
            self._proposed = None
            return self._ask(allowed, here) or self._stay(self._explain(here, job, view))
        agreed = self._proposed == best.rung.level and not (lossier and self._step < self._moved + HOLD)
        self._proposed = best.rung.level
        if not agreed and best.to_accuracy > (1 - AT_ONCE) * here.to_accuracy:
            return self._stay(self._explain(here, job, view))
        return self._move(best.rung.level, self._explain(best, job, view))

    def _learn_speed(self, job: Job, facts: StepFacts) -> None:
        """How much longer work takes here than the ladder says."""
        expected = LADDER[index_of(self._current)].work * 1e-9 * job.numel
        if expected > 0 and facts.work > 0:
            seen = min(20.0, max(0.2, facts.work / expected))
            self._scale += SCALE_GAIN * (seen - self._scale)

    def _ask(self, allowed: list[Prediction], here: Prediction) -> Decision | None:  # 4
        """One step at a milder rung, when nothing was heard for so long that its extra time does not show."""
        if self._silent < ASK_AFTER:
            return None
        milder = allowed[: allowed.index(here)]
        affordable = [p for p in milder if p.step <= (1 + ASK_COST * self._silent) * here.step]
        if not affordable:
            return None
        self._silent = 0
        level = affordable[0].rung.level
        return Decision(level, f"one step at {level} to see whether the network got faster", self._version)

    def _stay(self, reason: str) -> Decision:
        return Decision(self._current, reason, self._version)

    def _move(self, level: Level, reason: str) -> Decision:
        self._current, self._proposed, self._moved = level, None, self._step
        self._version += 1
        return Decision(level, reason, self._version)

    @staticmethod
    def _explain(chosen: Prediction, job: Job, view: View) -> str:
        rate = Rate(view.group.bandwidth or 0.0)
        dense = Seconds(job.wire_bytes(Level()) / max(rate, 1.0))
        if chosen.rung.level.off:
            return f"{rate} carries the whole gradient in {dense}; compressing would not shorten the step"
        if chosen.exposed <= 0.02 * chosen.step:
            return f"{rate} needs {dense} for the whole gradient; {chosen.rung.level} hides behind compute"
        return f"{rate} needs {dense} for the whole gradient; {chosen.rung.level} waits {Seconds(chosen.exposed)}"
