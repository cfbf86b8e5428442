"""Accuracy guard: detects when compression harms training, and forbids lossier rungs for some time.

Two criteria. First, the residual's energy relative to the gradient's. With error feedback it depends on the kept share
(with a share r an element waits about 1/r steps); far more means that what is sent no longer follows the gradient.
Second, the loss, where the user reports it: a fast average well above a slow average while compressing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from gradwire.level import Level

# Multiple of the expected residual energy that counts as harm. Chosen wide, not measured: the expectation is rough.
TOO_MUCH: Final = 10.0
# The fast average of the loss must exceed the slow one by this factor, in this many reports in a row.
RISE: Final = 1.15
PATIENCE: Final = 10
# Steps for which a rung stays forbidden.
PENALTY: Final = 100


def expected_residual(level: Level) -> float:
    """Residual energy relative to the gradient's in a normal run: a few times 1/r for a kept share r, because the noise
    of that many steps adds up before an element is sent; dense rounding leaves little."""
    if level.off:
        return 0.0
    if level.sparse:
        return 3.0 / level.ratio
    if level.select == "lowrank":
        return 50.0
    return {"fp16": 0.01, "bf16": 0.05, "int8": 0.05, "int4": 1.0}.get(level.values, 1.0)


@dataclass(slots=True)
class AccuracyGuard:
    """Keeps averages of the loss and the present limit; `reason` explains the limit."""

    _fast: float = 0.0
    _slow: float = 0.0
    _rising: int = 0
    _limit: int | None = None
    _until: int = 0
    reason: str = ""

    def check(self, step: int, level: Level, index: int, residual: float, loss: float) -> int | None:
        """Check one step that ran at rung `index`; returns the index of the lossiest rung allowed, None for all."""
        if self._limit is not None and step >= self._until:
            self._limit, self.reason = None, ""
        harm = self._loss_rises(loss) if index > 0 else ""
        if residual > TOO_MUCH * expected_residual(level) > 0:
            harm = f"residual energy is {residual:.0f} times the gradient's"
        if harm and index > 0:
            self._limit = max(0, min(index, index if self._limit is None else self._limit) - 1)
            self._until = step + PENALTY
            self._rising, self._slow = 0, self._fast  # the next rung starts without a rise
            self.reason = f"{harm} at {level}"
        return self._limit

    def _loss_rises(self, loss: float) -> str:
        if not 0 < loss < math.inf:  # not reported, or a step that a loss scaler skips
            return ""
        self._fast = loss if self._fast == 0 else self._fast + 0.3 * (loss - self._fast)
        self._slow = loss if self._slow == 0 else self._slow + 0.03 * (loss - self._slow)
        self._rising = self._rising + 1 if self._fast > RISE * self._slow else 0
        return f"the loss rose from {self._slow:.3g} to {self._fast:.3g}" if self._rising >= PATIENCE else ""
