"""Accuracy guard: detects when compression harms training, and forbids levels as lossy as the present one. Pure.

Three signs of harm, each only while a step loses something:

    1. the loss that the user notes is not finite several times in a row (once is a step that a loss scaler skips), or
       a fast average of it lies well above a slow one for some notes
    2. without noted losses: the same for the energy of the sampled gradient, with a wider margin, because it rises in
       healthy training too
    3. the noted loss has not improved for a long time at a sparse or low-rank level

After harm the level and all lossier ones are forbidden, for twice as long each time. It remembers across levels and
network changes: what harmed once is tried again late, and less and less often.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gradwire.decide.lossiness import lossiness
from gradwire.level import Level
from gradwire.types import StepFacts

# A fast average this far above the slow one, for so many observations in a row, is a rise.
LOSS_RISE: Final = 1.15
ENERGY_RISE: Final = 4.0
PATIENCE: Final = 5
FAST: Final = 0.3
# Losses fall slowly and are noted seldom; the gradient's energy varies much and is seen at every step.
LOSS_GAIN: Final = 0.03
ENERGY_GAIN: Final = 0.01
# Noted losses without improvement that count as a stall, and the improvement that counts.
STALL: Final = 200
IMPROVES: Final = 0.995
# Steps for which a level is forbidden the first time.
PENALTY: Final = 200


@dataclass(slots=True)
class RisingAverage:
    """A fast and a slow average of positive values; counts how long the fast one lies above `margin` x the slow one."""

    margin: float
    gain: float
    fast: float = 0.0
    slow: float = 0.0
    rising: int = 0

    def take(self, value: float) -> bool:
        """Whether the value has risen for PATIENCE observations."""
        if self.slow == 0:
            self.fast = self.slow = value
        self.fast += FAST * (value - self.fast)
        self.slow += self.gain * (value - self.slow)
        self.rising = self.rising + 1 if self.fast > self.margin * self.slow else 0
        return self.rising >= PATIENCE

    def settle(self) -> None:
        """The next rise counts from here."""
        self.slow, self.rising = self.fast, 0


@dataclass(slots=True)
class AccuracyGuard:
    """`reason` explains the last harm; `allows` says which levels may be used."""

    reason: str = ""
    _loss: RisingAverage = field(default_factory=lambda: RisingAverage(LOSS_RISE, LOSS_GAIN))
    _energy: RisingAverage = field(default_factory=lambda: RisingAverage(ENERGY_RISE, ENERGY_GAIN))
    _best: float = math.inf
    _since_best: int = 0
    _nonfinite: int = 0
    _limit: Level | None = None
    _until: int = 0
    _penalty: int = PENALTY

    def check(self, step: int, level: Level, facts: StepFacts) -> bool:
        """Whether the step, which ran at `level`, shows harm; then the level is forbidden from now on."""
        if self._limit is not None and step >= self._until:
            self._limit = None
        harm = self._harm(level, facts)
        if not harm or level.off:
            return False
        lossier = self._limit is None or lossiness(level) < lossiness(self._limit)
        self._limit = level if lossier else self._limit
        self._until, self._penalty = step + self._penalty, 2 * self._penalty
        self._loss.settle()
        self._energy.settle()
        self._since_best = self._nonfinite = 0
        self.reason = f"{harm} at {level}"
        return True

    def allows(self, level: Level) -> bool:
        return self._limit is None or level.off or lossiness(level) < lossiness(self._limit)

    def _harm(self, level: Level, facts: StepFacts) -> str:
        found = ""
        if facts.sample is not None and len(facts.sample):
            energy = float(np.dot(facts.sample, facts.sample))
            if math.isfinite(energy) and energy > 0 and self._energy.take(energy):
                found = f"the gradient grew {math.sqrt(self._energy.fast / self._energy.slow):.1f} times"
        if not math.isfinite(facts.loss):
            self._nonfinite += 1
            return "the loss is not finite" if self._nonfinite >= PATIENCE else found
        if facts.loss <= 0:  # not noted; the rise of a negative loss has no scale
            return found
        self._nonfinite = 0
        return self._loss_harm(level, facts.loss) or found

    def _loss_harm(self, level: Level, loss: float) -> str:
        slow = self._loss.slow
        if self._loss.take(loss):
            return f"the loss rose from {slow:.3g} to {self._loss.fast:.3g}"
        if self._loss.slow < IMPROVES * self._best:
            self._best, self._since_best = self._loss.slow, 0
        else:
            self._since_best += 1
        lossy = level.sparse or level.select == "lowrank"
        return f"the loss has not improved for {STALL} notes" if lossy and self._since_best >= STALL else ""
