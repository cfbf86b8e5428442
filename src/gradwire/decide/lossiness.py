"""Lossiness: the order of levels by what they may lose, and the cap that a user sets with `lossiest`. Pure.

    off < fp16 = bf16 < int8 < int4 < ... < a large kept share < ... < low rank < 10 % < 3 % < 1 % < ...

Three facts of a level decide, in this order:

    1. the share of the elements that a step sends: 1 for dense levels; pruned elements are not sent
    2. low rank: less rank is lossier. What a rank keeps depends on the matrices, so low rank has one place, just before
       the sparse levels that keep LOWRANK_SHARE: it is allowed where those or lossier ones are
    3. the bits of a value, where the shares are equal: they are in the name of the format

How a sparse level selects its elements does not count (a plan replaces topk by sharedk of the same share); nor does
zstd, which is exact.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gradwire.level import VALUES, Level, bits

# On a small GPT with AdamW low rank 4 costs 1.34 times the steps and the top 10 % 1.15 times; on convolutional networks
# low rank costs less than the top 10 %. Between the two, a user who allows 10 % allows both.
LOWRANK_SHARE: Final = 0.1

Lossiness = tuple[float, int, int, int]


def kept_share(level: Level) -> float:
    """The share of the elements that a step sends; LOWRANK_SHARE for low rank."""
    sent = LOWRANK_SHARE if level.select == "lowrank" else level.ratio
    return sent * (1.0 - level.prune)


def lossiness(level: Level) -> Lossiness:
    """A key that sorts levels, least lossy first."""
    return -kept_share(level), level.select != "lowrank", -level.rank, -bits(level.values)


def at_most(level: Level, cap: Level) -> bool:
    """Whether a level is not lossier than the cap. A sparse cap without a value format allows all formats."""
    if cap.sparse and cap.values == "fp32":
        cap = replace(cap, values=min(VALUES, key=bits))
    return lossiness(level) <= lossiness(cap)


def least_ratio(cap: Level | None) -> float:
    """For a controller that counts in shares of the gradient: the ratio at which it reaches the cap, 0 without a cap.
    It is the kept share, or a dense level's bytes relative to fp32. A ratio that falls below it would change nothing
    and would have to rise again before the level does."""
    if cap is None:
        return 0.0
    share = kept_share(cap)
    return share if share < 1 else bits(cap.values) / bits("fp32")


def limited(level: Level, cap: Level) -> Level:
    """The level where the cap allows it, else the cap; one without a value format gets that of the sparse level."""
    if at_most(level, cap):
        return level
    if cap.sparse and cap.values == "fp32" and level.sparse:
        return replace(cap, values=level.values)
    return cap
