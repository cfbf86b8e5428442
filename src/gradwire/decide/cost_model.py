"""Cost: how long a step would take at a level, predicted from the View, the last step and exact sizes.

The network is one server of `bandwidth`, the encoder another; buckets come when backward has them ready:

    encoded  = max(encoded before, ready) + encoding
    sent     = max(sent before, encoded) + bytes / bandwidth
    restored = sent + the larger of hops x latency and the overhead seen + decoding
    exposed  = last restored - last ready
    step     = compute + exposed + the part of the work that takes time from compute

Wire bytes count what this rank sends; links are full duplex and exchanges symmetric, so that is also what it receives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gradwire.decide.base import Job
from gradwire.decide.ladder import LADDER, Rung, index_of
from gradwire.level import Level
from gradwire.types import StepFacts, View

# Share of encoding and decoding that comes out of compute's time where both run on the same cores. A guess between the
# two ends (0 with cores to spare, 1 on a full machine); nobody has measured it yet.
STOLEN: Final = 0.5


@dataclass(frozen=True, slots=True)
class StepPrediction:
    """A step at one level."""

    rung: Rung
    step: float
    exposed: float

    @property
    def to_accuracy(self) -> float:
        """Seconds per unit of training progress."""
        return self.step * self.rung.slowdown


def predict(rung: Rung, job: Job, view: View, facts: StepFacts, current: Level, scale: float) -> StepPrediction:
    """`scale` is how much longer work takes on this machine than the ladder says."""
    bandwidth, latency = view.group.bandwidth or 1e12, (view.group.rtprop or 0.0) / 2
    work = rung.work * 1e-9 * scale
    exposed = 0.0
    if job.buckets:
        size, ready = job.sizes(rung.level), times(facts, len(job.buckets))
        encoding = work * job.numels / 2
        sent = served(served(ready, encoding), size.each / bandwidth)
        restored = sent[-1] + max(size.last_hops * latency, view.group.overhead) + encoding[-1]
        exposed = max(0.0, float(restored - ready[-1]))
    before = LADDER[index_of(current)].work * 1e-9 * scale * job.numel
    compute = max(0.0, facts.compute + STOLEN * (work * job.numel - before))
    return StepPrediction(rung, compute + exposed, exposed)


def times(facts: StepFacts, count: int) -> NDArray[np.float64]:
    """When each of `count` buckets was ready; those that the step did not tell of, with its last one."""
    told = np.array([at for at, _ in facts.buckets[:count]] or [0.0])
    return np.pad(told, (0, count - len(told)), mode="edge")


def served(came: NDArray[np.float64], each: NDArray[np.float64]) -> NDArray[np.float64]:
    """When a server that takes `each` seconds for a customer is done with those that `came`, in their order:
    done[i] = max(done[i - 1], came[i]) + each[i], without a loop over buckets."""
    until = np.cumsum(each)
    return np.asarray(until + np.maximum.accumulate(came - (until - each)))
