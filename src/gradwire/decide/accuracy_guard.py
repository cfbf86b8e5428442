"""Guard: notices when compression hurts training, and forbids the lossier rungs for a while.

Two signs. The energy that waits in the residual, relative to a fresh gradient's: error feedback keeps it near what the
kept share explains (a share r leaves an element waiting about 1/r steps); far more means that what is sent no longer
follows the gradient. And the loss, where the user notes it: a quick average well above the slow one, while compressing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from gradwire.level import Level

# Multiples of the expected residual energy that count as hurting. Chosen wide, not measured: the expectation is rough.
TOO_MUCH: Final = 10.0
# The loss's quick average this much above the slow one, for this many notes in a row.
RISE: Final = 1.15
PATIENCE: Final = 10
# Steps for which a forbidden rung stays forbidden.
PENALTY: Final = 100


def expected_residual(level: Level) -> float:
    """Energy that waits relative to a fresh gradient's, in a healthy run: a few times 1/r for a kept share r, because
    that many steps' noise adds up before an element goes; dense rounding leaves little."""
    if level.off:
        return 0.0
    if level.sparse:
        return 3.0 / level.ratio
    if level.select == "lowrank":
        return 50.0
    return {"fp16": 0.01, "bf16": 0.05, "int8": 0.05, "int4": 1.0}.get(level.values, 1.0)


@dataclass(slots=True)
class AccuracyGuard:
    """`limit` is how lossy a rung may be now (an index into the ladder), with the reason."""

    _quick: float = 0.0
    _slow: float = 0.0
    _rising: int = 0
    _limit: int | None = None
    _until: int = 0
    reason: str = ""

    def check(self, step: int, level: Level, index: int, residual: float, loss: float) -> int | None:
        """Look at one step taken at rung `index`; returns the lossiest rung allowed, None for all."""
        if self._limit is not None and step >= self._until:
            self._limit, self.reason = None, ""
        hurting = self._loss_rises(loss) if index > 0 else ""
        if residual > TOO_MUCH * expected_residual(level) > 0:
            hurting = f"the residual holds {residual:.0f} times a gradient's energy"
        if hurting and index > 0:
            self._limit = max(0, min(index, index if self._limit is None else self._limit) - 1)
            self._until = step + PENALTY
            self._rising, self._slow = 0, self._quick  # judge the next rung afresh
            self.reason = f"{hurting} at {level}"
        return self._limit

    def _loss_rises(self, loss: float) -> str:
        if not 0 < loss < math.inf:  # not noted, or a step that a loss scaler skips
            return ""
        self._quick = loss if self._quick == 0 else self._quick + 0.3 * (loss - self._quick)
        self._slow = loss if self._slow == 0 else self._slow + 0.03 * (loss - self._slow)
        self._rising = self._rising + 1 if self._quick > RISE * self._slow else 0
        return f"the loss rose to {self._quick:.3g} from {self._slow:.3g}" if self._rising >= PATIENCE else ""
