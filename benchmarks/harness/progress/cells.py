"""Cells: one task on one network, from curves of loss over time to figures. Pure arithmetic.

    targets    the losses that plain DDP has reached after a quarter, a half and nine tenths of its steps
    speed      the other contestant's seconds to a target over auto's: above 1, auto was there first
    best       the fixed level with the least mean time to the target over seeds; those that most seeds reached first
    keeping    the same among the levels that cost no accuracy at equal steps, as `auto` does by default

Where the user allows a trade (`extra_steps`), auto is compared with the best of all fixed levels.

Targets are set for each seed. A contestant that did not reach a target in its steps would take longer than its whole
time, with which it is compared: the speed is then at least what is stated, or, if `auto` is the one, less than that.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from harness.progress.curves import Curve

AUTO: Final = "auto"
# auto with extra_steps = 1.0: it may use levels that need up to twice the steps.
TRADE: Final = "auto-trade"
# auto with sync_every = "auto": it may use local steps.
AUTO_LOCAL: Final = "auto-local"
PLAIN: Final = "off"
# Of plain DDP's steps. The last leaves the others a tenth more steps than plain DDP needs.
SHARES: Final = (0.25, 0.5, 0.9)
# Level changes are counted from the step after this one on.
SETTLED: Final = 30


def targets_of(curves: Mapping[str, Curve]) -> tuple[float, ...]:
    """What plain DDP has reached after these shares of its steps."""
    plain = curves[PLAIN].lowest
    return tuple(plain[max(1, round(share * len(plain))) - 1] for share in SHARES)


@dataclass(frozen=True, slots=True)
class Speed:
    """auto's speed against another: the mean over seeds, each seed's, and in how many seeds only the other (`behind`)
    or only auto (`failed`) did not reach the target. A seed in which neither did says nothing and is left out."""

    other: str
    mean: float | None
    seeds: tuple[float, ...]
    behind: int
    failed: int

    @classmethod
    def of(cls, other: str, theirs: Sequence[Curve], ours: Sequence[Curve], targets: Sequence[float]) -> Speed:
        ratios, behind, failed = [], 0, 0
        for their, our, target in zip(theirs, ours, targets, strict=True):
            mine, reached = our.time_to(target), their.time_to(target)
            if mine is None and reached is None:
                continue
            failed += mine is None
            behind += reached is None
            ratios.append((their.end if reached is None else reached) / (our.end if mine is None else mine))
        return cls(other, statistics.fmean(ratios) if ratios else None, tuple(ratios), behind, failed)

    def as_json(self) -> dict[str, Any]:
        seeds, mean = [round(one, 4) for one in self.seeds], self.mean
        return {
            "other": self.other, "speed": None if mean is None else round(mean, 4), "seeds": seeds,
            "behind": self.behind, "failed": self.failed,
        }  # fmt: skip


def best_of(names: Sequence[str], curves: Sequence[Mapping[str, Curve]], targets: Sequence[float]) -> str:
    """The name with the least mean time to the target, among those that the most seeds reached."""

    def rank(name: str) -> tuple[int, float]:
        times = [seed[name].time_to(target) for seed, target in zip(curves, targets, strict=True)]
        reached = [one for one in times if one is not None]
        return -len(reached), statistics.fmean(reached) if reached else math.inf

    return min(names, key=rank)


@dataclass(frozen=True, slots=True)
class Lineup:
    """The contestants that auto is compared with: fixed levels, those of them that keep the accuracy, and peers; and
    those with local steps, which are compared with the best fixed level too."""

    fixed: Sequence[str]
    keeping: Sequence[str]
    peers: Sequence[str]
    local: Sequence[str] = ()


def cell_of(curves: Sequence[Mapping[str, Curve]], lineup: Lineup) -> dict[str, Any]:
    """The figures of one cell; `curves` has one mapping from contestants for each seed, of which the first has all."""
    per_seed = [targets_of(seed) for seed in curves]
    return {
        "targets": [
            {"share": share, **_row(curves, lineup, [targets[place] for targets in per_seed])}
            for place, share in enumerate(SHARES)
        ],
        "final": {name: [_rounded(seed[name].losses[-1]) for seed in curves if name in seed] for name in curves[0]},
        "ends": {name: [round(seed[name].end, 3) for seed in curves if name in seed] for name in curves[0]},
    }


def _row(curves: Sequence[Mapping[str, Curve]], lineup: Lineup, targets: Sequence[float]) -> dict[str, Any]:
    """One target: auto against both bests and every peer; auto with a trade allowed against the best and peers."""

    def speed(other: str, ours: str) -> dict[str, Any]:
        both = [(one, target) for one, target in zip(curves, targets, strict=True) if {other, ours} <= one.keys()]
        theirs, mine = ([one[name] for one, _ in both] for name in (other, ours))
        return Speed.of(other, theirs, mine, [target for _, target in both]).as_json()

    best, keeping = (best_of(names, curves, targets) for names in (lineup.fixed, lineup.keeping))
    row = {
        "loss": [round(one, 4) for one in targets],
        "best": speed(best, AUTO),
        "keeping": speed(keeping, AUTO),
        "peers": [speed(name, AUTO) for name in lineup.peers],
        "seconds": {
            name: [
                _rounded(seed[name].time_to(target))
                for seed, target in zip(curves, targets, strict=True)
                if name in seed
            ]
            for name in curves[0]
        },
    }
    if TRADE in curves[0]:
        row |= {"trade": speed(best, TRADE), "trade_peers": [speed(name, TRADE) for name in lineup.peers]}
    if lineup.local:
        row["local"] = [speed(best, name) | {"name": name} for name in lineup.local]
    return row


def changes_of(levels: Mapping[str, Any], after: int = SETTLED) -> int:
    """How often the level changed after that step; `levels` run-length coded."""
    ends = list(accumulate(count for _, count in levels["order"]))
    return sum(end >= after for end in ends[:-1])


def shares_of(levels: Mapping[str, Any]) -> dict[str, float]:
    """The share of steps at each level."""
    counts: dict[str, int] = {}
    for place, count in levels["order"]:
        counts[levels["kinds"][place]] = counts.get(levels["kinds"][place], 0) + count
    total = sum(counts.values())
    return {name: round(count / total, 4) for name, count in sorted(counts.items(), key=lambda one: -one[1])}


def _rounded(value: float | None) -> float | None:
    return round(value, 4) if value is not None and math.isfinite(value) else None
