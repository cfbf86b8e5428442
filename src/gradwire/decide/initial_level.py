"""Start: the level of the steps that are sent before any step was seen, from a first look at the network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gradwire.level import Level
from gradwire.types import Decision
from gradwire.units import Rate, Seconds

# Mildest first. Four times fewer bytes than dense and hardly lossy is the rule; what waits of a few sparse steps goes
# with the next ones.
STARTS: Final = tuple(map(Level.parse, ("int8", "topk:0.1+int8", "topk:0.03+int8", "topk:0.01+int8")))
# A step that sends for so long is no trouble, whatever the model computes meanwhile.
QUICK: Final = 0.25


def start(rate: float | None, wire_bytes: Callable[[Level], int]) -> Decision:
    """The mildest level that is quick at this rate, else the last; the mildest where the rate is not known."""
    if rate is None:
        return Decision(STARTS[0], "the network has not been measured yet")
    level = next((level for level in STARTS if wire_bytes(level) <= QUICK * rate), STARTS[-1])
    takes = Seconds(wire_bytes(level) / rate)
    return Decision(level, f"a first look found {Rate(rate)}; {level} takes {takes} until steps show more")
