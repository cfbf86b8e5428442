"""Initial level: the level of the first steps, from the startup probe, until steps are measured; within the cap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gradwire.decide.lossiness import limited
from gradwire.decide.price import PriceList
from gradwire.level import Level
from gradwire.types import Decision
from gradwire.units import Rate, Seconds

# Least lossy first, and dense: what low rank would send depends on shapes that are known with the first step only.
INITIAL_LEVELS: Final = tuple(map(Level.parse, ("int8", "int4")))
# Where uncompressed sending takes less than this, compressing cannot shorten a step much, whatever the compute time.
NEGLIGIBLE: Final = 0.002
# Seconds of compute per step that are assumed until a step was measured: the longer it is, the smaller a share of the
# step sending less can save. Chosen between a small model's tens of milliseconds and a large one's seconds.
ASSUMED_COMPUTE: Final = 0.25


def initial_level(rate: float | None, wire_bytes: Callable[[Level], int], lossiest: Level | None = None) -> Decision:
    """The level with the least predicted time to accuracy at this rate; the first where no rate is known. None is
    lossier than `lossiest`."""
    levels = INITIAL_LEVELS if lossiest is None else tuple(limited(level, lossiest) for level in INITIAL_LEVELS)
    if rate is None:
        return Decision(levels[0], "the network has not been measured yet")
    plain = wire_bytes(Level())
    if plain <= NEGLIGIBLE * rate:
        takes = Seconds(plain / rate)
        return Decision(Level(), f"startup probe: {Rate(rate)}; uncompressed takes {takes} a step")
    prices = PriceList(())
    level = min(levels, key=lambda one: (ASSUMED_COMPUTE + wire_bytes(one) / rate) * prices.of(one))
    takes = Seconds(wire_bytes(level) / rate)
    return Decision(level, f"startup probe: {Rate(rate)}; {level} ({takes} a step) until steps are measured")
