"""Auto: chooses the rung with the best time to accuracy, predicted or measured. The default.

    1. predict a step's time at every rung of the ladder; where steps at a rung were measured on this network, their
       median counts with the weight of its certainty (decide/history.py)
    2. multiply by the rung's price (steps that its lossiness costs this job, decide/job_prices.py), leave out rungs
       that are not permitted or that could take too long if the bandwidth is overestimated, and choose the least lossy
       rung within 3 % of the best: rungs that overlap with compute take equal time, and `off` is chosen where the
       network does not slow training
    3. move to a less lossy rung when it is chosen; to a lossier one only when staying costs 8 % or more. Unless the
       gain is large, move only when two decisions in a row agree and the last change is some steps ago. That number
       doubles with every return to an earlier rung, as long as the network does not change
    4. where the prediction of the current rung was wrong, measure other rungs that may be as good, one at a time, and
       keep the best
    5. where traffic is too small to show whether the network got faster, send one larger step from time to time,
       less and less often

Not permitted are rungs beyond the user's cap, rungs that cost more than `extra_steps` (so that equal epochs give equal
accuracy, unless the user allows a trade), sparse rungs during warm-up, and what the accuracy guard forbids.

The reason names the numbers that decided.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gradwire.decide.accuracy_guard import AccuracyGuard
from gradwire.decide.base import Job
from gradwire.decide.cost_model import StepPrediction, predict_all
from gradwire.decide.history import History
from gradwire.decide.initial_level import INITIAL_LEVELS
from gradwire.decide.job_prices import JobPrices
from gradwire.decide.ladder import LADDER, index_of
from gradwire.decide.level_rules import LevelRules
from gradwire.decide.rate_probe import RateProbe
from gradwire.level import Level
from gradwire.types import Decision, LevelOption, StepFacts, View
from gradwire.units import Rate, Seconds

# Estimates vary by a few per cent on a steady network: the band between these two prevents flapping between rungs.
AS_GOOD: Final = 0.03
WORSE: Final = 0.08
# A gain of this size is taken at once, others when proposed twice; lossier ones at least HOLD steps after a change. A
# rung is left for its price after as many steps.
AT_ONCE: Final = 0.5
HOLD: Final = 10
# A clear difference, where both rungs were measured. Each return to a rung doubles the hold, up to the longest.
CLEAR: Final = 0.15
LONGEST_HOLD: Final = 320
SCALE_GAIN: Final = 0.25
# A rung that was not measured may take at most this many times the present time to accuracy at the proven lower bound
# of the bandwidth; and it is explored only if its prediction is at most this much worse.
RISK: Final = 2.5
PROMISING: Final = 0.25
# Prices that reasons state.
SHOWN_PRICE: Final = 1.005
# The steps that lossiness may cost where the user allows no trade: what differs between two seeds.
EXTRA_STEPS: Final = 0.05


class Auto:
    """Keeps the current rung, the machine's speed, the prices and the history of rungs, and the accuracy guard."""

    def __init__(self, lossiest: Level | None = None, extra_steps: float = EXTRA_STEPS) -> None:
        self._dearest = 1 + extra_steps
        self._prices = JobPrices(tuple(rung.level.ratio for rung in LADDER if rung.level.sparse))
        self._current = INITIAL_LEVELS[0]
        self._version = 0
        self._scale = 1.0
        self._guard = AccuracyGuard()
        self._rules = LevelRules(self._prices, self._guard, lossiest, extra_steps)
        self._history = History()
        self._model_error = 1.0
        self._proposed: Level | None = None
        self._step = 0
        self._moved_at, self._hold = -HOLD, HOLD
        self._changes, self._changed_at = 0, -LONGEST_HOLD
        self._exploring = False
        self._dear_for = 0
        self._visited: set[Level] = set()
        self._probe = RateProbe()
        self._predictions: list[StepPrediction] = []

    def options(self) -> tuple[LevelOption, ...] | None:
        """What the last step showed of every rung that may be used, at once or after the warm-up; None before there is
        a prediction. What sparse rungs cost this job is known after some steps."""
        if not self._predictions:
            return None
        return self._rules.options(map(self._tolerated, self._predictions), self._step)

    def price(self, level: Level) -> float | None:
        """Of a level that is sent between all ranks; None where it is not known, dearer than permitted, or
        forbidden."""
        return self._rules.price(level)

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        self._step += 1
        ran = facts.level or self._current
        if self._step == 1:
            self._current = ran
        self._prices.take(job.sends(ran), facts)
        return replace(self._decide(job, _known(view), facts, ran), slowdown=self._prices.slowdown(job.sends(ran)))

    def _decide(self, job: Job, view: View, facts: StepFacts, ran: Level) -> Decision:
        harmed = self._guard.check(self._step, ran, facts)
        if view.group.bandwidth is None:
            return self._stop_compressing() if harmed else self._stay("the network has not been measured yet")
        self._learn_speed(job, facts, ran)
        if view.changes != self._changes:
            self._changes = view.changes
            self._reset_exploration()
        self._history.take(index_of(ran), facts)
        predictions = self._predictions = self._predict(job, view, facts, ran)  # 1
        here = predictions[index_of(self._current)]
        self._dear_for = self._dear_for + 1 if here.price > self._dearest else 0
        if harmed:
            return self._back_off(predictions)
        allowed = [one for one in predictions if self._permitted(one)]
        if here not in allowed:
            best = min(allowed, key=lambda p: p.to_accuracy)
            return self._move(best.rung.level, f"{self._current} would cost {here.price - 1:.0%} more steps")
        if ran != self._current or not self._measured(here):
            return self._stay(f"measuring {self._current}")
        self._probe.take(job.wire_bytes(ran), facts.busy, view)
        affordable = self._affordable(allowed, here, job, view, facts)
        return (
            self._choose(affordable, here, job, view)
            or self._probe_rate(allowed, here)
            or self._stay(self._explain(here, job, view))
        )

    def _choose(self, allowed: list[StepPrediction], here: StepPrediction, job: Job, view: View) -> Decision | None:
        """None: nothing speaks for another rung."""
        least = min(p.to_accuracy for p in allowed)
        best = next(p for p in allowed if p.to_accuracy <= (1 + AS_GOOD) * least)  # 2
        if best is here or (self._lossier(best, here) and here.to_accuracy <= (1 + self._band) * least):  # 3
            self._proposed, self._exploring = None, False
            return self._explore(allowed, here)
        if not self._confirmed(best, here):
            return self._stay(self._explain(here, job, view))
        return self._move(best.rung.level, self._explain(best, job, view))

    @property
    def _band(self) -> float:
        """How much worse than the best a rung is kept; one that is being explored was not chosen yet."""
        return AS_GOOD if self._exploring else WORSE

    def _reset_exploration(self) -> None:
        """Drop the history and explore again after a network change, unless one happened recently (likely noise)."""
        self._history.forget()
        self._probe.network_changed()
        if self._step > self._changed_at + LONGEST_HOLD:
            self._visited, self._hold = set(), HOLD
        self._changed_at = self._step

    def _confirmed(self, best: StepPrediction, here: StepPrediction) -> bool:
        """Whether to move to `best` now: at once for a large gain, or when both rungs were measured and differ clearly;
        else when proposed twice (or measured), and, for a rung that is lossier or was measured, not soon after another
        change. A rung that is only being explored is left for a better one at any time."""
        measured, lossier = self._measured(best), self._lossier(best, here)
        gain = 1 - best.to_accuracy / here.to_accuracy
        again, self._proposed = self._proposed == best.rung.level, best.rung.level
        if gain >= AT_ONCE or (measured and gain >= CLEAR):
            return True
        soon = self._step < self._moved_at + self._hold and not (self._exploring and measured)
        return (measured or again) and not (soon and (measured or lossier))

    def _predict(self, job: Job, view: View, facts: StepFacts, ran: Level) -> list[StepPrediction]:
        """Every rung as measured, else as predicted, scaled by the model's error for the rung that ran."""
        model = predict_all(LADDER, job, view, facts, ran, self._scale)
        error = self._model_error = self._history.model_error(index_of(ran), model[index_of(ran)].step)
        return [
            StepPrediction(
                one.rung,
                self._history.blended(index, error * one.step),
                one.exposed,
                self._prices.of(job.sends(one.rung.level)),
            )
            for index, one in enumerate(model)
        ]

    def _affordable(
        self, allowed: list[StepPrediction], here: StepPrediction, job: Job, view: View, facts: StepFacts
    ) -> list[StepPrediction]:
        """Without rungs that were not measured, send more than now, and take too long to the same accuracy if bandwidth
        is overestimated."""
        floor = min(self._history.floor, view.group.bandwidth or 0.0)
        pessimistic = View(replace(view.group, bandwidth=floor or None))
        size = job.wire_bytes(here.rung.level)
        doubtful = {
            one.rung: one.price
            for one in allowed
            if one is not here and not self._measured(one) and job.wire_bytes(one.rung.level) > size
        }
        slow = predict_all(tuple(doubtful), job, pessimistic, facts, here.rung.level, self._scale) if doubtful else []
        risky = {one.rung.level for one in slow if one.step * doubtful[one.rung] > RISK * here.to_accuracy}
        return [one for one in allowed if one.rung.level not in risky]

    def _permitted(self, one: StepPrediction) -> bool:
        return self._rules.permits(one.rung.level, self._tolerated(one).price, self._step)

    def _tolerated(self, one: StepPrediction) -> StepPrediction:
        """Measured prices vary: a rung in use is too dear when its price has been for some steps."""
        noise = one.rung.level == self._current and self._dear_for < HOLD
        return replace(one, price=min(one.price, self._dearest)) if noise else one

    def _back_off(self, predictions: list[StepPrediction]) -> Decision:
        """After harm: the quickest dense rung that is less lossy than what harmed."""
        dense = [one for one in predictions if one.rung.level.select == "all" and self._permitted(one)]
        best = min(dense, key=lambda p: p.to_accuracy)
        decision = self._move(best.rung.level, f"{self._guard.reason}; backing off to {best.rung.level}")
        return replace(decision, guarded=True)

    def _stop_compressing(self) -> Decision:
        """After harm where no time can be predicted."""
        return replace(self._move(Level(), f"{self._guard.reason}; backing off to off"), guarded=True)

    def _measured(self, one: StepPrediction) -> bool:
        return self._history.seconds(index_of(one.rung.level)) is not None

    @staticmethod
    def _lossier(one: StepPrediction, other: StepPrediction) -> bool:
        return index_of(one.rung.level) > index_of(other.rung.level)

    def _learn_speed(self, job: Job, facts: StepFacts, ran: Level) -> None:
        """Update how much longer work takes on this machine than the ladder says."""
        expected = LADDER[index_of(ran)].work * 1e-9 * job.numel
        if expected > 0 and facts.work > 0:
            scale = min(20.0, max(0.2, facts.work / expected))
            self._scale += SCALE_GAIN * (scale - self._scale)

    def _explore(self, allowed: list[StepPrediction], here: StepPrediction) -> Decision | None:  # 4
        """A rung that was not measured and may be as good, when the model was wrong here and no change was recent."""
        if self._step < self._moved_at + self._hold or self._model_error == 1.0:
            return None
        candidates = [
            p for p in allowed if not self._measured(p) and p.to_accuracy <= (1 + PROMISING) * here.to_accuracy
        ]
        if not candidates:
            return None
        level = min(candidates, key=lambda p: p.to_accuracy).rung.level
        took = f"{self._current} took {Seconds(here.step)}"
        decision = self._move(level, f"{took}, which differs from the prediction; measuring {level}")
        self._exploring = True
        return decision

    def _probe_rate(self, allowed: list[StepPrediction], here: StepPrediction) -> Decision | None:  # 5
        """One step at a less lossy rung, where the network may have got faster and it takes little longer. If the
        bandwidth is overestimated, it is one long step among many."""
        longest = self._probe.longest * here.step
        quick = [p for p in allowed[: allowed.index(here)] if p.step <= longest]
        if not self._probe.due or not quick:
            return None
        self._probe.sent()
        level = quick[0].rung.level
        return Decision(level, f"one step at {level} to measure whether the network got faster", self._version)

    def _stay(self, reason: str) -> Decision:
        return Decision(self._current, reason, self._version)

    def _move(self, level: Level, reason: str) -> Decision:
        self._visited.add(self._current)
        if level in self._visited:
            self._hold = min(LONGEST_HOLD, 2 * self._hold)
        self._current, self._proposed, self._moved_at, self._exploring = level, None, self._step, False
        self._version += 1
        return Decision(level, reason, self._version)

    @staticmethod
    def _explain(chosen: StepPrediction, job: Job, view: View) -> str:
        rate = Rate(view.group.bandwidth or 0.0)
        dense = Seconds(job.wire_bytes(Level()) / max(rate, 1.0))
        if chosen.rung.level.off:
            return f"sending uncompressed takes {dense} at {rate}; compressing would not shorten the step"
        dense_time = f"uncompressed takes {dense} at {rate}"
        more = f", about {chosen.price - 1:.0%} more steps" if chosen.price >= SHOWN_PRICE else ""
        if chosen.exposed <= 0.02 * chosen.step:
            return f"{dense_time}; {chosen.rung.level} overlaps with compute{more}"
        return f"{dense_time}; with {chosen.rung.level} a step waits {Seconds(chosen.exposed)}{more}"


def _known(view: View) -> View:
    """Where the bandwidth is not identified, what the network carries at least."""
    group = view.group
    if group.bandwidth is None and group.floor > 0:
        return replace(view, group=replace(group, bandwidth=group.floor))
    return view
