"""DC2: compression coupled to network delay (INFOCOM 2021; our reconstruction, no code was published).

    d       delay of a step's synchronisation, waiting for late ranks taken out; smoothed with gain 1/8
    v       its deviation, gain 1/4
    d_low   the least delay there can be: the round trips of the exchange
    d_high  the delay budget: what backward can hide, never below 2 RTprop
    full    d scaled from the bytes that were sent to the bytes of the whole gradient
    x       clip((full + k v - d_high) / full, 0, 1): how much of the whole gradient's delay lies beyond the budget
    ratio   the share that fits: r_max (1 - x), between r_min 0.001 and r_max 1

Changes within 10 % are not made, and none is larger than x 0.5 or x 1.5 in a step; off when x < 0.05 for 5 steps.
The delay is read against the whole gradient's, not against its own minimum: a controller that compares a compressed
step's delay with the uncompressed budget alone flips between the two ends.
"""

from __future__ import annotations

from typing import Final

from gradwire.decide.base import Job
from gradwire.decide.netsense import level_for
from gradwire.flow import Decision, StepFacts, View
from gradwire.level import Level
from gradwire.units import Seconds

# How many deviations of delay to be prepared for.
K: Final = 1.0
LEAST: Final = 0.001
DEAD_BAND: Final = 0.1
SHRINK: Final = 0.5
GROW: Final = 1.5
QUIET: Final = 0.05
QUIET_STEPS: Final = 5


class Dc2:
    """The ratio and how long the network has been quiet."""

    def __init__(self) -> None:
        self._ratio = 0.1
        self._quiet = 0
        self._version = 0

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        link = view.group
        if link.delay <= 0 or facts.wire_bytes <= 0:
            return Decision(level_for(self._ratio), "no delay has been measured yet", self._version)
        rtprop = link.rtprop or 0.0
        latency = min(facts.hops * rtprop / 2, link.delay)
        dense = job.wire_bytes(Level())
        full = latency + (link.delay - latency) * dense / facts.wire_bytes
        budget = max(facts.span, 2 * rtprop)
        x = min(1.0, max(0.0, (full + K * link.variation - budget) / max(full, 1e-9)))
        before = level_for(self._ratio)
        self._follow(max(LEAST, 1.0 - x), x)
        level = level_for(self._ratio)
        if level != before:
            self._version += 1
        reason = (
            f"delay {Seconds(link.delay)} +- {Seconds(link.variation)}, the whole gradient would take {Seconds(full)} "
            f"against a budget of {Seconds(budget)}"
        )
        return Decision(level, reason, self._version)

    def _follow(self, wanted: float, x: float) -> None:
        """Move towards the wanted ratio, by bounded steps and not for trifles."""
        self._quiet = self._quiet + 1 if x < QUIET else 0
        if self._quiet >= QUIET_STEPS:
            self._ratio = 1.0
            return
        wanted = min(wanted, 0.99)  # off only by being quiet
        if abs(wanted - self._ratio) > DEAD_BAND * self._ratio:
            self._ratio = min(GROW * self._ratio, max(SHRINK * self._ratio, wanted))
