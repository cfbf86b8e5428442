"""NetSense: NetSenseML's rule, with measured round trips and delivery rates (Euro-Par 2025, arXiv 2506.16235).

    BDP = RTprop x BtlBw        RTprop from pulses, BtlBw the best rate of the last 5 s; never from the same transfer
    start-up: ratio 0.01, doubled every step, until BtlBw grows by less than 25 % for three steps or there is congestion
    steady:   congested (more in flight than 0.9 BDP, and training waits for it): ratio x 0.7
              otherwise: ratio + 10 % of itself, up to 1, which is off

As published the ratio can only fall: one transfer gives both the rate and the time, and every transfer exceeds 0.9 of
their product. Here a transfer that training does not wait for is not congestion, so the ratio can rise again.
"""

from __future__ import annotations

from typing import Final

from gradwire.decide.base import Job
from gradwire.decide.lossiness import least_ratio
from gradwire.level import Level
from gradwire.types import Decision, StepFacts, View
from gradwire.units import Bytes, Seconds

START: Final = 0.01
LEAST: Final = 0.001
FULL_PIPE_GROWTH: Final = 1.25
FULL_PIPE_ROUNDS: Final = 3
IN_FLIGHT: Final = 0.9
DECREASE: Final = 0.7
INCREASE: Final = 1.1
# Waiting for less than this share of a step's compute does not count as congestion.
TOLERATED: Final = 0.05


def level_for(ratio: float) -> Level:
    """Dense fp32, then half, then int8, then top-k with quantised values, as the ratio falls."""
    if ratio >= 1:
        return Level()
    if ratio >= 0.5:
        return Level(values="fp16")
    if ratio >= 0.25:
        return Level(values="int8")
    return Level(select="topk", ratio=float(f"{max(ratio, LEAST):.2g}"), values="int8")


class NetSense:
    """Keeps the ratio, the phase and the best rate so far."""

    def __init__(self, lossiest: Level | None = None) -> None:
        self._least = max(LEAST, least_ratio(lossiest))
        self._ratio = max(START, self._least)
        self._starting = True
        self._rate = 0.0
        self._flat = 0
        self._version = 0

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        rtprop, best = view.group.rtprop or 0.0, view.group.best or 0.0
        bdp = rtprop * best
        waits = facts.exposed > max(TOLERATED * facts.compute, 2 * rtprop)
        congested = facts.wire_bytes > IN_FLIGHT * bdp and waits
        before = level_for(self._ratio)
        if self._starting:
            self._start_up(best, congested)
        elif congested:
            self._ratio = max(self._least, self._ratio * DECREASE)
        else:
            self._ratio = min(1.0, self._ratio * INCREASE)
        level = level_for(self._ratio)
        if level != before:
            self._version += 1
        return Decision(level, self._explain(congested, facts, bdp), self._version)

    def _start_up(self, best: float, congested: bool) -> None:
        self._flat = 0 if best > FULL_PIPE_GROWTH * self._rate else self._flat + 1
        self._rate = max(self._rate, best)
        if congested:
            self._ratio = max(self._least, self._ratio * DECREASE)
        self._starting = not congested and self._flat < FULL_PIPE_ROUNDS and self._ratio < 1
        if self._starting:
            self._ratio = min(1.0, 2 * self._ratio)

    def _explain(self, congested: bool, facts: StepFacts, bdp: float) -> str:
        flight = f"{Bytes(facts.wire_bytes)} in flight against a BDP of {Bytes(int(bdp))}"
        if self._starting:
            return f"start-up: the link is not full yet, {flight}"
        if congested:
            return f"congested: {flight}, training waits {Seconds(facts.exposed)}"
        return f"not congested: {flight}"
