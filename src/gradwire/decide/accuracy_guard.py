"""Accuracy guard: detects when compression harms training, and forbids levels as lossy as the present one. Pure.

Three signs of harm, each only while a step loses something:

    1. the loss that the user notes is not finite several times in a row (once is a step that a loss scaler skips), or
       it has risen: the median of the last notes lies above the level of those before by a margin, and by more than
       their noise explains
    2. without noted losses: the same for the energy of the sampled gradient, with a wider margin, because it rises in
       healthy training too, and only at levels that hold a part of the gradient back: int4 and less lossy ones do not
       make a gradient grow
    3. the noted loss has not improved for a long time at a sparse or low-rank level

After harm the level and all lossier ones are forbidden, for twice as long each time. It remembers across levels and
network changes: what harmed once is tried again late, and less and less often.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gradwire.decide.lossiness import at_most, lossiness
from gradwire.level import Level
from gradwire.types import StepFacts

# Rises that count, as factors of a loss and of an energy (healthy trainings' energy rose up to 3 times in 100 steps).
LOSS_RISE: Final = 1.15
ENERGY_RISE: Final = 8.0
# Observations whose median is the present value: half of them may be outliers, which are frequent among energies.
LOSSES: Final = 9
ENERGIES: Final = 15
# Gain of the averages of older observations. Losses fall slowly and are noted seldom; energies are seen at every step.
LOSS_GAIN: Final = 0.03
ENERGY_GAIN: Final = 0.01
# A rise is more than so many standard errors of a median: mean absolute deviations x 1.25 x 1.25 / sqrt(observations).
SIGNIFICANT: Final = 4 * 1.25 * 1.25
# Losses in a row that are not finite.
PATIENCE: Final = 5
# Noted losses without improvement that count as a stall, and the improvement that counts.
STALL: Final = 200
IMPROVES: Final = 0.995
# Steps for which a level is forbidden the first time.
PENALTY: Final = 200
# The lossiest level that holds nothing back: it rounds, and what it rounds away is sent one step later.
ROUNDS_ONLY: Final = Level(values="int4")


@dataclass(slots=True)
class RiseDetector:
    """Compares the median of the last `size` positive values with the values before them, as logarithms."""

    margin: float
    gain: float
    size: int
    _recent: deque[float] = field(default_factory=deque)
    _level: float = 0.0
    _deviation: float = 0.0
    _older: int = 0

    @property
    def before(self) -> float:
        """The level of the values before the last ones; infinite until there are any."""
        return math.exp(self._level) if self._older else math.inf

    @property
    def now(self) -> float:
        return math.exp(statistics.median(self._recent))

    def take(self, value: float) -> bool:
        """Whether the values have risen."""
        self._recent.append(math.log(value))
        if len(self._recent) > self.size:
            self._add_older(self._recent.popleft())
        if self._older < self.size:
            return False
        noise = SIGNIFICANT * self._deviation / math.sqrt(self.size)
        return statistics.median(self._recent) - self._level > max(math.log(self.margin), noise)

    def settle(self) -> None:
        """The next rise counts from here."""
        self._level = statistics.median(self._recent) if self._recent else self._level
        self._recent.clear()

    def _add_older(self, log: float) -> None:
        self._older += 1
        gain = max(self.gain, 1 / self._older)
        self._deviation += gain * (abs(log - self._level) * (self._older > 1) - self._deviation)
        self._level += gain * (log - self._level)


@dataclass(slots=True)
class AccuracyGuard:
    """`reason` explains the last harm; `allows` says which levels may be used."""

    reason: str = ""
    _loss: RiseDetector = field(default_factory=lambda: RiseDetector(LOSS_RISE, LOSS_GAIN, LOSSES))
    _energy: RiseDetector = field(default_factory=lambda: RiseDetector(ENERGY_RISE, ENERGY_GAIN, ENERGIES))
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
        found = self._energy_harm(level, facts)
        if not math.isfinite(facts.loss):
            self._nonfinite += 1
            return "the loss is not finite" if self._nonfinite >= PATIENCE else found
        if facts.loss <= 0:  # not noted; the rise of a negative loss has no scale
            return found
        self._nonfinite = 0
        return self._loss_harm(level, facts.loss) or found

    def _energy_harm(self, level: Level, facts: StepFacts) -> str:
        if facts.sample is None or not len(facts.sample):
            return ""
        energy = float(np.dot(facts.sample, facts.sample))
        rises = math.isfinite(energy) and energy > 0 and self._energy.take(energy)
        if not rises or at_most(level, ROUNDS_ONLY):
            return ""
        return f"the gradient grew {math.sqrt(self._energy.now / self._energy.before):.1f} times"

    def _loss_harm(self, level: Level, loss: float) -> str:
        if self._loss.take(loss):
            return f"the loss rose from {self._loss.before:.3g} to {self._loss.now:.3g}"
        if self._loss.before < IMPROVES * self._best:
            self._best, self._since_best = self._loss.before, 0
        else:
            self._since_best += 1
        lossy = level.sparse or level.select == "lowrank"
        return f"the loss has not improved for {STALL} notes" if lossy and self._since_best >= STALL else ""
