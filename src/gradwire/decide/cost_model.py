"""Cost model: predicts the time of a step at a level, from the View, the last step and exact sizes.

The network is one server of `bandwidth`, the encoder another; buckets arrive when backward has them ready:

    encoded  = max(encoded before, ready) + encoding
    sent     = max(sent before, encoded) + bytes / bandwidth
    restored = sent + the larger of hops x latency and the measured overhead + decoding
    exposed  = last restored - last ready - slack
    step     = compute + exposed + the part of the work that slows compute

Wire bytes are what this rank sends; links are full duplex and exchanges symmetric, so it receives the same amount.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gradwire.decide.base import Job
from gradwire.decide.ladder import LADDER, Rung, index_of
from gradwire.level import Level
from gradwire.types import StepFacts, View

# Share of encoding and decoding that slows compute where both use the same cores. Chosen between the extremes (0 with
# idle cores, 1 on a full machine), not measured.
STOLEN: Final = 0.5


@dataclass(frozen=True, slots=True)
class StepPrediction:
    """The predicted step at one rung: seconds in total, and seconds that training waits for the network."""

    rung: Rung
    step: float
    exposed: float
    # How many times more steps the rung needs for the same loss (decide/price.py).
    price: float = 1.0

    @property
    def to_accuracy(self) -> float:
        """Seconds per unit of training progress."""
        return self.step * self.price


def predict(rung: Rung, job: Job, view: View, facts: StepFacts, current: Level, scale: float) -> StepPrediction:
    """`current` is the level of `facts`; `scale` is how much longer work takes on this machine than the ladder says."""
    return predict_all((rung,), job, view, facts, current, scale)[0]


def predict_all(
    rungs: Sequence[Rung], job: Job, view: View, facts: StepFacts, current: Level, scale: float
) -> list[StepPrediction]:
    """`predict` of several rungs at once, which takes hardly longer than of one."""
    bandwidth, latency = view.group.bandwidth or 1e12, (view.group.rtprop or 0.0) / 2
    work = 1e-9 * scale * np.array([rung.work for rung in rungs])
    exposed = np.zeros(len(rungs))
    if job.buckets:
        sizes = [job.sizes(rung.level) for rung in rungs]
        ready = ready_times(facts, len(job.buckets))
        encoding = work[:, None] * job.numels / 2
        sent = finish_times(finish_times(ready, encoding), np.array([size.each for size in sizes]) / bandwidth)
        answer = np.maximum(latency * np.array([size.last_hops for size in sizes]), view.group.overhead)
        exposed = np.maximum(0.0, sent[:, -1] + answer + encoding[:, -1] - ready[-1] - facts.slack)
    before = LADDER[index_of(current)].work * 1e-9 * scale
    compute = np.maximum(0.0, facts.compute + STOLEN * job.numel * (work - before))
    return [StepPrediction(*each) for each in zip(rungs, (compute + exposed).tolist(), exposed.tolist(), strict=True)]


def ready_times(facts: StepFacts, count: int) -> NDArray[np.float64]:
    """When each of `count` buckets was ready; buckets without a measured time, together with the last measured one."""
    measured = [at for at, _ in facts.buckets[:count]]
    return np.array(measured + measured[-1:] * (count - len(measured)) if measured else [0.0] * count)


def finish_times(arrivals: NDArray[np.float64], each: NDArray[np.float64]) -> NDArray[np.float64]:
    """When a first-in first-out server finishes requests that take `each` seconds, without a loop over buckets:
    finish[i] = max(finish[i - 1], arrivals[i]) + each[i]. Rows are independent."""
    until = np.cumsum(each, axis=-1)
    return np.asarray(until + np.maximum.accumulate(arrivals - (until - each), axis=-1))
