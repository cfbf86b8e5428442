"""Auto: the rung with the best time to accuracy, as predicted and as seen. The default, and nothing to set.

    1. predict a step's time at every rung of the ladder; where steps at a rung were really seen on this network, what
       they took takes the prediction's place (decide/history.py)
    2. multiply by what the rung's lossiness costs in steps, leave out what the guard forbids and what could cost too
       much if it failed, and take the least lossy rung that comes within 3 % of the best: rungs that hide behind
       compute tie on time, and `off` wins where the network is not what slows training
    3. towards less loss move when that rung is found; towards more only when staying costs 8 % or more; and, unless
       the gain is large, only when two decisions in a row agree and the last change is some steps ago: ever more of
       them, as long as it only returns to where it was and the network stays as it is
    4. where the model was wrong about the rung in use, try others that may be as good, one at a time, and keep what
       turns out best
    5. where traffic is too small to tell whether the network got faster, send more of it for one step now and then

The reason names the numbers that decided.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gradwire.decide.accuracy_guard import AccuracyGuard
from gradwire.decide.base import Job
from gradwire.decide.cost_model import StepPrediction, predict
from gradwire.decide.history import History
from gradwire.decide.initial_level import STARTS
from gradwire.decide.ladder import LADDER, index_of
from gradwire.level import Level
from gradwire.types import Decision, StepFacts, View
from gradwire.units import Rate, Seconds

# Estimates wander by a few per cent on a steady network: the band between these two keeps a rung from flapping.
AS_GOOD: Final = 0.03
WORSE: Final = 0.08
# A change of this size is acted on at once, others when seen twice, and lossier ones not soon after another change.
AT_ONCE: Final = 0.5
HOLD: Final = 10
# ... where both rungs were seen, this is a clear difference. Each return to a rung doubles the hold, up to the longest.
CLEAR: Final = 0.15
LONGEST_HOLD: Final = 320
SCALE_GAIN: Final = 0.25
# A rung that nobody has seen may take this many times the present step if the network carries no more than it did for
# certain; and one is worth a try that looks at most this much worse.
RISK: Final = 2.5
PROMISING: Final = 0.25
# Steps without word on the bandwidth before one is spent on asking, and how much longer it may be for each of them.
ASK_AFTER: Final = 50
ASK_COST: Final = 0.005


class Auto:
    """Keeps the current rung, the machine's speed, what was seen, and the guard."""

    def __init__(self) -> None:
        self._current = self._ran = STARTS[0]
        self._version = 0
        self._scale = 1.0
        self._guard = AccuracyGuard()
        self._experience = History()
        self._doubt = 1.0
        self._proposed: Level | None = None
        self._step = 0
        self._moved, self._hold = -HOLD, HOLD
        self._changes, self._changed = 0, -LONGEST_HOLD
        self._trying = False
        self._visited: set[Level] = set()
        self._silent = 0

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        self._step += 1
        ran = facts.level or self._current
        if self._step == 1:
            self._current = self._ran = ran
        if view.group.bandwidth is None:
            return self._stay("the network has not been measured yet")
        self._learn_speed(job, facts, ran)
        if view.changes != self._changes:
            self._changes = view.changes
            self._reopen()
        self._experience.take(index_of(ran), facts)
        predictions = self._predict(job, view, facts, ran)  # 1
        here = predictions[index_of(self._current)]
        limit = self._guard.check(self._step, ran, index_of(ran), self._own_residual(ran, facts), facts.loss)
        allowed = predictions if limit is None else predictions[: limit + 1]
        if here not in allowed:
            best = min(allowed, key=lambda p: p.to_accuracy)
            moved = self._move(best.rung.level, f"{self._guard.reason}; backing off to {best.rung.level}")
            return replace(moved, guarded=True)
        if ran != self._current or not self._seen(here):
            return self._stay(f"seeing what {self._current} takes")
        allowed = self._bearable(allowed, here, job, view, facts)
        least = min(p.to_accuracy for p in allowed)
        best = next(p for p in allowed if p.to_accuracy <= (1 + AS_GOOD) * least)  # 2
        self._silent = self._silent + 1 if view.group.age > 0 else 0
        if best is here or (self._lossier(best, here) and here.to_accuracy <= (1 + WORSE) * least):  # 3
            self._proposed = None
            return self._try(allowed, here) or self._ask(allowed, here) or self._stay(self._explain(here, job, view))
        if not self._agreed(best, here):
            return self._stay(self._explain(here, job, view))
        return self._move(best.rung.level, self._explain(best, job, view))

    def _reopen(self) -> None:
        """Forget what was seen before the network changed, and explore again, unless it changed recently: then it (or
        this machine) is unsteady, and exploring would only go to and fro."""
        self._experience.forget()
        if self._step > self._changed + LONGEST_HOLD:
            self._visited, self._hold = set(), HOLD
        self._changed = self._step

    def _agreed(self, best: StepPrediction, here: StepPrediction) -> bool:
        """Whether to move to `best` now: at once for much, or when both rungs were seen and differ clearly; else when
        proposed twice (or seen), and, for a rung that is lossier or was seen, not soon after another change; a rung
        that was only tried is left for a better one at any time."""
        seen, lossier = self._seen(best), self._lossier(best, here)
        gain = 1 - best.to_accuracy / here.to_accuracy
        again, self._proposed = self._proposed == best.rung.level, best.rung.level
        if gain >= AT_ONCE or (seen and gain >= CLEAR):
            return True
        soon = self._step < self._moved + self._hold and not (self._trying and seen)
        return (seen or again) and not (soon and (seen or lossier))

    def _predict(self, job: Job, view: View, facts: StepFacts, ran: Level) -> list[StepPrediction]:
        """Every rung: as it was seen, else as the model says, scaled by how wrong it was about the rung that ran."""
        model = [predict(rung, job, view, facts, ran, self._scale) for rung in LADDER]
        doubt = self._doubt = self._experience.doubt(index_of(ran), model[index_of(ran)].step)
        seen = [self._experience.seconds(index) for index in range(len(LADDER))]
        return [
            replace(one, step=doubt * one.step if took is None else took) for one, took in zip(model, seen, strict=True)
        ]

    def _bearable(
        self, allowed: list[StepPrediction], here: StepPrediction, job: Job, view: View, facts: StepFacts
    ) -> list[StepPrediction]:
        """Without rungs that nobody has seen, send more than now, and would take too long if bandwidth is overrated."""
        floor = min(self._experience.floor, view.group.bandwidth or 0.0)
        dark = View(replace(view.group, bandwidth=floor or None))
        size = job.wire_bytes(here.rung.level)

        def risky(one: StepPrediction) -> bool:
            if one is here or self._seen(one) or job.wire_bytes(one.rung.level) <= size:
                return False
            return predict(one.rung, job, dark, facts, here.rung.level, self._scale).step > RISK * here.step

        return [one for one in allowed if not risky(one)]

    def _seen(self, one: StepPrediction) -> bool:
        return self._experience.seconds(index_of(one.rung.level)) is not None

    @staticmethod
    def _lossier(one: StepPrediction, other: StepPrediction) -> bool:
        return index_of(one.rung.level) > index_of(other.rung.level)

    def _own_residual(self, ran: Level, facts: StepFacts) -> float:
        """What waits is the level's own doing from its second step on; in its first it is the one's before it."""
        before, self._ran = self._ran, ran
        return facts.residual if before == ran else 0.0

    def _learn_speed(self, job: Job, facts: StepFacts, ran: Level) -> None:
        """How much longer work takes here than the ladder says."""
        expected = LADDER[index_of(ran)].work * 1e-9 * job.numel
        if expected > 0 and facts.work > 0:
            seen = min(20.0, max(0.2, facts.work / expected))
            self._scale += SCALE_GAIN * (seen - self._scale)

    def _try(self, allowed: list[StepPrediction], here: StepPrediction) -> Decision | None:  # 4
        """A rung that nobody has seen and that may be as good, when the model has been wrong here and all is calm."""
        if self._step < self._moved + self._hold or self._doubt == 1.0:
            return None
        unseen = [p for p in allowed if not self._seen(p) and p.to_accuracy <= (1 + PROMISING) * here.to_accuracy]
        if not unseen:
            return None
        level = min(unseen, key=lambda p: p.to_accuracy).rung.level
        tried = self._move(level, f"{self._current} takes {Seconds(here.step)}, not as predicted; trying {level}")
        self._trying = True
        return tried

    def _ask(self, allowed: list[StepPrediction], here: StepPrediction) -> Decision | None:  # 5
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
        if self._step < self._moved + HOLD:
            self._experience.left(index_of(self._current))
        self._visited.add(self._current)
        if level in self._visited:
            self._hold = min(LONGEST_HOLD, 2 * self._hold)
        self._current, self._proposed, self._moved, self._trying = level, None, self._step, False
        self._version += 1
        return Decision(level, reason, self._version)

    @staticmethod
    def _explain(chosen: StepPrediction, job: Job, view: View) -> str:
        rate = Rate(view.group.bandwidth or 0.0)
        dense = Seconds(job.wire_bytes(Level()) / max(rate, 1.0))
        if chosen.rung.level.off:
            return f"{rate} carries the whole gradient in {dense}; compressing would not shorten the step"
        if chosen.exposed <= 0.02 * chosen.step:
            return f"{rate} needs {dense} for the whole gradient; {chosen.rung.level} hides behind compute"
        return f"{rate} needs {dense} for the whole gradient; {chosen.rung.level} waits {Seconds(chosen.exposed)}"
