"""Warm-up: which levels a controller may use in the first steps. Pure.

Early gradients are large and turn quickly. What a sparse or low-rank level holds back then arrives late and in bursts,
and has ruined trainings (an ordinary CNN with SGD 0.05 and momentum 0.9 at 3 %). So the first steps are dense or of a
mild low rank, and the share of a sparse level then falls exponentially, as DGC's does, until it is free.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gradwire.level import Level

# Steps that are dense, steps until every share is allowed, and the shares between which the limit falls.
DENSE_STEPS: Final = 20
WARM_STEPS: Final = 100
FIRST_SHARE: Final = 0.25
LEAST_SHARE: Final = 0.001
# Low rank of this rank or more keeps nearly all of a gradient: without any warm-up it needs about as few steps as int4
# (docs/results/lossiness.md).
MILD_RANK: Final = 32
# In place of a sparse or low-rank level during the dense steps: its bytes are the least that are nearly exact.
DENSE: Final = Level(values="int4")


def least_share(step: int) -> float:
    """The least share of elements that a step may send; above 1 while only dense levels are allowed."""
    if step < DENSE_STEPS:
        return 2.0
    if step >= WARM_STEPS:
        return 0.0
    passed = (step - DENSE_STEPS) / (WARM_STEPS - DENSE_STEPS)
    return float(FIRST_SHARE * (LEAST_SHARE / FIRST_SHARE) ** passed)


def allows(step: int, level: Level) -> bool:
    """Whether the step may use the level. Low rank has no share that could fall: a mild one waits for nothing, others
    for the end of the warm-up."""
    least = least_share(step)
    if level.select == "lowrank":
        return level.rank >= MILD_RANK or least == 0.0
    return not level.sparse or level.ratio >= least


def warmed(step: int, level: Level) -> Level:
    """The level where the step may use it; else the same kind with the least share, or a dense one."""
    if allows(step, level):
        return level
    least = least_share(step)
    if least > 1 or not level.sparse:
        return DENSE
    return replace(level, ratio=float(f"{least:.2g}"))
