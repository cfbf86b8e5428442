"""History: measured step times of each rung, on the present network.

The last few steps of each rung are kept:

    seconds      a rung's median step time, once two of its steps were measured
    error        its relative standard error, which grows with the steps since then
    model_error  measured time / predicted time of the current rung; predictions of other rungs are scaled by it
    blended      measured and predicted time, each with the weight of its certainty

After a network change (the View counts them; sense/change_detector.py detects them) everything is dropped. Until then a
measurement stays better than the model: what misled the model once would mislead it again.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from gradwire.types import StepFacts

# Steps kept of each rung (noise averages out; the detector finds changes), and how many are needed for a median.
KEPT: Final = 15
ENOUGH: Final = 2
# Relative standard error of a prediction that is scaled by the model's error at another rung; and what a measurement
# gains with every step since: after 2,000 it counts as much. Drifts that matter before, the change detector finds.
MODEL_ERROR: Final = 0.15
AGEING: Final = MODEL_ERROR / 2000
# Steps from which their own deviation is used; fewer may all be outliers. The least relative deviation: clocks.
FEW: Final = 5
LEAST_SPREAD: Final = 0.02
# Relative error below which the model counts as right.
RIGHT: Final = 0.1


@dataclass(slots=True)
class _RungHistory:
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    busy: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    typical: float = 0.0
    floor: float = 0.0
    last: int = 0

    def add(self, facts: StepFacts, step: int) -> None:
        self.seconds.append(facts.seconds)
        self.busy.append(facts.busy)
        self.typical, self.last = statistics.median(self.seconds), step
        self.floor = facts.wire_bytes / statistics.median(self.busy)


@dataclass(slots=True)
class History:
    """Keeps the steps; call `take` once per step with the rung it ran at."""

    _rungs: dict[int, _RungHistory] = field(default_factory=dict)
    _step: int = 0

    def take(self, index: int, facts: StepFacts) -> None:
        """Add a step."""
        self._step += 1
        if facts.busy > 0 and facts.seconds > 0:
            self._rungs.setdefault(index, _RungHistory()).add(facts, self._step)

    def forget(self) -> None:
        """Drop everything: the network changed."""
        self._rungs = {}

    def seconds(self, index: int) -> float | None:
        """The median step time of the rung; None where it is not measured."""
        rung = self._rungs.get(index)
        return None if rung is None or len(rung.seconds) < ENOUGH else rung.typical

    def error(self, index: int) -> float:
        """The relative standard error of `seconds`: from the spread of the rung's steps, or a cautious one for few, and
        from their age."""
        rung = self._rungs[index]
        times = rung.seconds
        middle = rung.typical
        spread = max(abs(took - middle) for took in times) if len(times) < FEW else _deviation(times, middle)
        own = max(spread / middle, LEAST_SPREAD) / math.sqrt(len(times))
        return math.hypot(own, AGEING * (self._step - rung.last))

    def model_error(self, index: int, predicted: float) -> float:
        """Measured / predicted time of the rung's steps; 1 where the model is right or the rung is not measured."""
        measured = self.seconds(index)
        if measured is None or predicted <= 0 or abs(measured / predicted - 1) <= RIGHT:
            return 1.0
        return measured / predicted

    def blended(self, index: int, predicted: float) -> float:
        """Two steps of a noisy network do not outweigh the model, ten of a steady one do."""
        took = self.seconds(index)
        if took is None:
            return predicted
        measured, model = self.error(index) ** -2, MODEL_ERROR**-2
        return (measured * took + model * predicted) / (measured + model)

    @property
    def floor(self) -> float:
        """A lower bound of the bandwidth in bytes per second: latency and overhead are not subtracted from the time."""
        return max((rung.floor for rung in self._rungs.values()), default=0.0)


def _deviation(times: deque[float], middle: float) -> float:
    """The standard deviation of a Gaussian with this median absolute deviation."""
    return 1.4826 * statistics.median(abs(took - middle) for took in times)
