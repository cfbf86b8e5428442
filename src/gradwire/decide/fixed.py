"""Fixed: the level the user asked for, at every step, with DGC's warm-up for sparse levels if asked.

Uniform compression is the baseline every adaptive controller must beat. It looks at nothing, so ranks agree without a
word on the wire.
"""

from __future__ import annotations

from dataclasses import replace

from gradwire.level import Level
from gradwire.types import Decision

# DGC begins with a quarter of the gradient and closes in on the asked share exponentially.
WARMUP_START = 0.25


class Fixed:
    """Always the same level."""

    def __init__(self, level: Level, world_size: int, warmup: int = 0) -> None:
        self._level = level
        self._world_size = world_size
        self._warmup = warmup if level.sparse else 0

    def at(self, step: int) -> Decision:
        if self._world_size == 1:
            return Decision(Level(), "one rank has nobody to send to")
        if self._level.off:
            return Decision(self._level, "compression is switched off")
        if step < self._warmup and self._level.ratio < WARMUP_START:
            ratio = WARMUP_START * (self._level.ratio / WARMUP_START) ** (step / self._warmup)
            level = replace(self._level, ratio=float(f"{ratio:.3g}"))
            return Decision(level, f"warm-up, step {step} of {self._warmup} towards {self._level}")
        return Decision(self._level, f"{self._level} is what the configuration asks for")
