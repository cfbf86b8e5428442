"""Cells: one task on one network, from curves of loss over time to figures. Pure arithmetic.

    smoothed   a trailing mean over a twentieth of the run's steps, at least five
    run's end  when a contestant that leads (has the lowest loss so far) has taken all its steps
    targets    the lowest loss that anyone has reached at one third, two thirds and the end of that time
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
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

AUTO: Final = "auto"
# auto with extra_steps = 1.0: it may use levels that need up to twice the steps.
TRADE: Final = "auto-trade"
# auto with sync_every = "auto": it may use local steps.
AUTO_LOCAL: Final = "auto-local"
SHARES: Final = (1 / 3, 2 / 3, 1.0)
# A run whose smoothed loss ends above this share of its first loss is ruined.
RUINED: Final = 0.9
# Level changes are counted from the step after this one on.
SETTLED: Final = 30


@dataclass(frozen=True, slots=True)
class Curve:
    """One run: when each step ended, and its smoothed loss."""

    seconds: tuple[float, ...]
    losses: tuple[float, ...]
    lowest: tuple[float, ...]
    first: float

    @classmethod
    def of(cls, seconds: Sequence[float], losses: Sequence[float], steps: int) -> Curve:
        """`steps` is what the run was to take; one whose loss was no longer finite has fewer."""
        smooth = smoothed(losses, window_of(steps))
        return cls(tuple(seconds[: len(smooth)]), smooth, tuple(accumulate(smooth, min)), float(losses[0]))

    @property
    def end(self) -> float:
        return self.seconds[-1]

    @property
    def ruined(self) -> bool:
        return not self.losses[-1] < RUINED * self.first

    def time_to(self, target: float) -> float | None:
        """Seconds until the smoothed loss is at or below the target for the first time."""
        return next((at for at, loss in zip(self.seconds, self.lowest, strict=True) if loss <= target), None)

    def lowest_by(self, seconds: float) -> float:
        place = bisect_right(self.seconds, seconds)
        return self.lowest[place - 1] if place else math.inf


def window_of(steps: int) -> int:
    return max(5, steps // 20)


def smoothed(losses: Sequence[float], window: int) -> tuple[float, ...]:
    """Trailing means; infinite until the window is full, and from a loss on that is not finite."""
    result, total = [], 0.0
    for index, loss in enumerate(losses):
        total += loss - (losses[index - window] if index >= window else 0.0)
        result.append(total / window if index + 1 >= window and math.isfinite(total) else math.inf)
    return tuple(result)


def run_end(curves: Mapping[str, Curve]) -> float:
    """When the first contestant that leads at its own end has ended."""
    ends = [
        one.end
        for one in curves.values()
        if one.lowest[-1] <= min(other.lowest_by(one.end) for other in curves.values())
    ]
    return min(ends)


def targets_of(curves: Mapping[str, Curve]) -> tuple[float, ...]:
    end = run_end(curves)
    return tuple(min(one.lowest_by(share * end) for one in curves.values()) for share in SHARES)


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
    """The figures of one cell; `curves` has one mapping from contestants for each seed."""
    per_seed = [targets_of(seed) for seed in curves]
    return {
        "end": [round(run_end(seed), 3) for seed in curves],
        "targets": [
            {"share": round(share, 3), **_row(curves, lineup, [targets[place] for targets in per_seed])}
            for place, share in enumerate(SHARES)
        ],
        "final": {name: [_rounded(seed[name].losses[-1]) for seed in curves] for name in curves[0]},
        "ends": {name: [round(seed[name].end, 3) for seed in curves] for name in curves[0]},
    }


def _row(curves: Sequence[Mapping[str, Curve]], lineup: Lineup, targets: Sequence[float]) -> dict[str, Any]:
    """One target: auto against both bests and every peer; auto with a trade allowed against the best and peers."""

    def speed(other: str, ours: str) -> dict[str, Any]:
        return Speed.of(other, [one[other] for one in curves], [one[ours] for one in curves], targets).as_json()

    best, keeping = (best_of(names, curves, targets) for names in (lineup.fixed, lineup.keeping))
    row = {
        "loss": [round(one, 4) for one in targets],
        "best": speed(best, AUTO),
        "keeping": speed(keeping, AUTO),
        "peers": [speed(name, AUTO) for name in lineup.peers],
        "seconds": {
            name: [_rounded(seed[name].time_to(target)) for seed, target in zip(curves, targets, strict=True)]
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
