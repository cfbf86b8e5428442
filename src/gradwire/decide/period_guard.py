"""Period guard: detects when local steps harm training, and limits how many a round may have. Pure.

Two signs, both from the losses that the user notes, one for each round:

    1. several in a row are not finite
    2. the median of the last ones lies above the level of those before by a margin, and by more than their noise
       explains (decide/accuracy_guard.py)

After harm only rounds with fewer local steps are allowed, for twice as long each time. Synchronous training is always
allowed; its levels have a guard of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from gradwire.decide.accuracy_guard import LOSS_GAIN, LOSS_RISE, PATIENCE, RiseDetector

# Rounds whose median is the present loss. Rounds are long, so it is fewer of them than of synchronous steps.
ROUNDS: Final = 5
# Optimizer steps for which a number of local steps is forbidden the first time.
PENALTY: Final = 1000


@dataclass(slots=True)
class PeriodGuard:
    """`reason` explains the last harm; `allows` says which numbers of local steps may be used."""

    reason: str = ""
    _loss: RiseDetector = field(default_factory=lambda: RiseDetector(LOSS_RISE, LOSS_GAIN, ROUNDS))
    _nonfinite: int = 0
    _limit: int | None = None
    _until: int = 0
    _penalty: int = PENALTY

    def check(self, step: int, sync_every: int, loss: float) -> bool:
        """Whether a round of `sync_every` steps, with this noted loss (0: none), shows harm; then its number of local
        steps is forbidden from now on."""
        if self._limit is not None and step >= self._until:
            self._limit = None
        harm = self._harm(loss)
        if not harm or sync_every == 1:
            return False
        self._limit = sync_every if self._limit is None else min(self._limit, sync_every)
        self._until, self._penalty = step + self._penalty, 2 * self._penalty
        self._loss.settle()
        self._nonfinite = 0
        self.reason = f"{harm} with rounds of {sync_every} steps"
        return True

    def allows(self, sync_every: int) -> bool:
        return sync_every == 1 or self._limit is None or sync_every < self._limit

    def _harm(self, loss: float) -> str:
        if not math.isfinite(loss):
            self._nonfinite += 1
            return "the loss is not finite" if self._nonfinite >= PATIENCE else ""
        if loss <= 0:  # not noted; the rise of a negative loss has no scale
            return ""
        self._nonfinite = 0
        rises = self._loss.take(loss)
        return f"the loss rose from {self._loss.before:.3g} to {self._loss.now:.3g}" if rises else ""
