"""Initial level: the level of the first steps, from the startup probe, until steps are measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gradwire.level import Level
from gradwire.types import Decision
from gradwire.units import Rate, Seconds

# Least lossy first. Normally int8: a quarter of the bytes, hardly lossy. What a few sparse steps leave in the residual
# is sent with the next ones.
INITIAL_LEVELS: Final = tuple(map(Level.parse, ("int8", "topk:0.1+int8", "topk:0.03+int8", "topk:0.01+int8")))
# Seconds of sending per step that are acceptable for the first steps, whatever the compute time.
QUICK: Final = 0.25


def initial_level(rate: float | None, wire_bytes: Callable[[Level], int]) -> Decision:
    """The least lossy level that takes at most QUICK at this rate, else the last; the first where no rate is known."""
    if rate is None:
        return Decision(INITIAL_LEVELS[0], "the network has not been measured yet")
    level = next((level for level in INITIAL_LEVELS if wire_bytes(level) <= QUICK * rate), INITIAL_LEVELS[-1])
    takes = Seconds(wire_bytes(level) / rate)
    return Decision(level, f"startup probe: {Rate(rate)}; {level} ({takes} a step) until steps are measured")
