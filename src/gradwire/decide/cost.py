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

from gradwire.decide.base import Job
from gradwire.decide.ladder import LADDER, Rung, index_of
from gradwire.flow import StepFacts, View
from gradwire.level import Level

# Share of encoding and decoding that comes out of compute's time where both run on the same cores. A guess between the
# two ends (0 with cores to spare, 1 on a full machine); nobody has measured it yet.
STOLEN: Final = 0.5


@dataclass(frozen=True, slots=True)
class Prediction:
    """A step at one level."""

    rung: Rung
    step: float
    exposed: float

    @property
    def to_accuracy(self) -> float:
        """Seconds per unit of training progress."""
        return self.step * self.rung.slowdown


def predict(rung: Rung, job: Job, view: View, facts: StepFacts, current: Level, scale: float) -> Prediction:
    """`scale` is how much longer work takes on this machine than the ladder says."""
    bandwidth, latency = view.group.bandwidth or 1e12, (view.group.rtprop or 0.0) / 2
    encoded = sent = restored = 0.0
    ready = 0.0
    work = rung.work * 1e-9 * scale
    times = [at for at, _ in facts.buckets] or [0.0]
    for index, bucket in enumerate(job.buckets):
        ready = times[min(index, len(times) - 1)]
        size = job.footprint(rung.level, bucket)
        encoded = max(encoded, ready) + work * bucket.numel / 2
        sent = max(sent, encoded) + size.wire_bytes / bandwidth
        restored = sent + max(size.hops * latency, view.group.overhead) + work * bucket.numel / 2
    exposed = max(0.0, restored - ready)
    before = LADDER[index_of(current)].work * 1e-9 * scale * job.numel
    compute = max(0.0, facts.compute + STOLEN * (work * job.numel - before))
    return Prediction(rung, compute + exposed, exposed)
