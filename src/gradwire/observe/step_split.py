"""Step split: the parts of a step's time, as a mean over ranks and steps.

`watch`, the report and the dashboard all show these numbers: the mean of all ranks, over the last RECENT steps for
"now" and over all steps for the whole run. The parts add up to the seconds of the step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gradwire.events import Stepped

PARTS: Final = ("compute", "encode", "wire", "wait")
# Steps of each rank in the mean for "now": enough to smooth single steps, few enough to follow a change.
RECENT: Final = 20
# Ten years: a larger number in a recording is damage, not data.
LONGEST: Final = 3.2e8


class StepSplit(NamedTuple):
    """Seconds of a mean step and its parts; all parts are 0 if only the whole step was recorded."""

    seconds: float
    compute: float
    encode: float
    wire: float
    wait: float

    @property
    def known(self) -> bool:
        return any(self[1:])


@dataclass(slots=True)
class SplitSum:
    """Adds steps; `mean` is over the steps whose parts are known, or over all steps if none are."""

    _steps: int = 0
    _seconds: float = 0.0
    _known_steps: int = 0
    _known: list[float] = field(default_factory=lambda: [0.0] * len(StepSplit._fields))

    def add(self, event: Stepped) -> None:
        values = [getattr(event, name) for name in StepSplit._fields]
        if not all(-LONGEST < value < LONGEST for value in values) or event.seconds < 0:
            return
        self._steps += 1
        self._seconds += event.seconds
        if any(values[1:]):
            self._known_steps += 1
            self._known = [total + value for total, value in zip(self._known, values, strict=True)]

    def mean(self) -> StepSplit | None:
        if self._known_steps:
            return StepSplit(*(total / self._known_steps for total in self._known))
        return StepSplit(self._seconds / self._steps, 0.0, 0.0, 0.0, 0.0) if self._steps else None


def mean_split(steps: Iterable[Stepped]) -> StepSplit | None:
    """The mean of these steps; None if there are none."""
    total = SplitSum()
    for step in steps:
        total.add(step)
    return total.mean()
