"""Progress to a target: when each of two runs first reached what both reached. Pure.

Noted losses are those of single batches, so they are smoothed first: the target is the higher of both runs' lowest
smoothed losses, or the lower of their best accuracies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from gradwire.observe.outcome import RunOutcome

# Differences that count as none: 0.3 points of accuracy, one per cent of the loss. Seeds differ by as much.
EQUAL_ACCURACY: Final = 0.003
EQUAL_LOSS: Final = 0.01
# A smoothed loss is the mean of a twentieth of the notes, at most so many.
SMOOTHED: Final = 50

Curve = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Progress:
    """Both runs' times to `target`, and how they ended: `worse` and `better` if the results differ beyond noise."""

    name: str
    target: str
    time: float
    base_time: float
    ends: str
    worse: bool
    better: bool


def progress(run: RunOutcome, base: RunOutcome, name: str) -> Progress | None:
    """By "accuracy" or "loss"; None if one of the runs did not note it."""
    if name == "accuracy":
        return _accuracy(run.accuracies, base.accuracies)
    return _loss(smooth(run.losses), smooth(base.losses))


def _accuracy(run: Curve, base: Curve) -> Progress | None:
    if not run or not base:
        return None
    best, other = max(value for _, value in run), max(value for _, value in base)
    target, gain = min(best, other), best - other
    ends = f"best accuracy {100 * best:.2f} % against {100 * other:.2f} %"
    times = _first(run, lambda value: value >= target), _first(base, lambda value: value >= target)
    return Progress("accuracy", f"{100 * target:.2f} %", *times, ends, gain < -EQUAL_ACCURACY, gain > EQUAL_ACCURACY)


def _loss(run: Curve, base: Curve) -> Progress | None:
    if not run or not base:
        return None
    best, other = min(value for _, value in run), min(value for _, value in base)
    target, room = max(best, other), EQUAL_LOSS * abs(other)
    ends = f"lowest loss {best:.4g} against {other:.4g}"
    times = _first(run, lambda value: value <= target), _first(base, lambda value: value <= target)
    return Progress("loss", f"a loss of {target:.4g}", *times, ends, best > other + room, best < other - room)


def _first(curve: Curve, reached: Callable[[float], bool]) -> float:
    return next(at for at, value in curve if reached(value))


def smooth(curve: Curve) -> list[tuple[float, float]]:
    """Trailing means; the first notes, of which there are fewer, are left out if there are others."""
    width = max(1, min(SMOOTHED, len(curve) // 20))
    return [
        (curve[i][0], sum(value for _, value in curve[i - width + 1 : i + 1]) / width)
        for i in range(width - 1, len(curve))
    ]
