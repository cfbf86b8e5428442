"""DC2: compression coupled to network delay (INFOCOM 2021; reconstructed from the paper, no code was published).

    full    delay of a step's synchronisation, scaled from the bytes sent to the uncompressed gradient; gain 1/8
    v       its deviation, gain 1/4
    d_high  the delay budget: what backward can overlap, never below 2 RTprop
    x       clip((full + k v - d_high) / full, 0, 1): the part of the uncompressed delay that exceeds the budget
    ratio   the share that fits: r_max (1 - x), between r_min 0.001 and r_max 1

Changes within 10 % are not made, and a step changes the ratio at most by x 0.5 or x 1.5; off when x < 0.05 for 5 steps.
The measured delay is scaled to the uncompressed gradient first: a controller that compares the delay of a compressed
step with the budget directly would alternate between the extremes.
"""

from __future__ import annotations

from typing import Final

from gradwire.decide.base import Job
from gradwire.decide.lossiness import least_ratio
from gradwire.decide.netsense import level_for
from gradwire.level import Level
from gradwire.types import Decision, StepFacts, View
from gradwire.units import Seconds

# Deviations that are added to the delay.
K: Final = 1.0
DELAY_GAIN: Final = 1 / 8
DEVIATION_GAIN: Final = 1 / 4
LEAST: Final = 0.001
DEAD_BAND: Final = 0.1
SHRINK: Final = 0.5
GROW: Final = 1.5
QUIET: Final = 0.05
QUIET_STEPS: Final = 5


class Dc2:
    """Keeps the ratio, the smoothed delay, and for how many steps the delay was within the budget."""

    def __init__(self, lossiest: Level | None = None) -> None:
        self._least = max(LEAST, least_ratio(lossiest))
        self._ratio = max(0.1, self._least)
        self._quiet = 0
        self._version = 0
        self._full = 0.0
        self._deviation = 0.0

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        if facts.busy <= 0 or facts.wire_bytes <= 0:
            return Decision(level_for(self._ratio), "no delay has been measured yet", self._version)
        rtprop = view.group.rtprop or 0.0
        latency = min(facts.hops * rtprop / 2, facts.busy)
        sample = latency + (facts.busy - latency) * job.wire_bytes(Level()) / facts.wire_bytes
        self._smooth(sample)
        budget = max(facts.span, 2 * rtprop)
        x = min(1.0, max(0.0, (self._full + K * self._deviation - budget) / max(self._full, 1e-9)))
        before = level_for(self._ratio)
        self._follow(max(self._least, 1.0 - x), x)
        level = level_for(self._ratio)
        if level != before:
            self._version += 1
        reason = (
            f"sending uncompressed would take {Seconds(self._full)} +- {Seconds(self._deviation)}; "
            f"the budget is {Seconds(budget)}"
        )
        return Decision(level, reason, self._version)

    def _smooth(self, sample: float) -> None:
        if self._full == 0:
            self._full = sample
        self._deviation += DEVIATION_GAIN * (abs(sample - self._full) - self._deviation)
        self._full += DELAY_GAIN * (sample - self._full)

    def _follow(self, wanted: float, x: float) -> None:
        """Move towards the wanted ratio in bounded steps; small differences are ignored."""
        self._quiet = self._quiet + 1 if x < QUIET else 0
        if self._quiet >= QUIET_STEPS:
            self._ratio = 1.0
            return
        wanted = min(wanted, 0.99)  # off only after QUIET_STEPS
        if abs(wanted - self._ratio) > DEAD_BAND * self._ratio:
            self._ratio = min(GROW * self._ratio, max(SHRINK * self._ratio, wanted))
