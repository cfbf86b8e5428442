"""Awareness: what transfers have shown of each link, kept by the coordinator, turned into a Matrix on demand.

In: Observations (source, destination, bytes per second, round trip), as LTP's ACKs give them, reported off the critical
path; links found blocked; the time. Out: a Matrix with age and confidence, and the links worth a probe: those that
carry nothing and were not measured for long. Times are the caller's clock; nothing here waits or sends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradwire.plan.matrix import Matrix

# NetStorm times messages of 2 MB and more; shorter ones mostly measure the round trip.
LEAST_BYTES = 256 << 10
# New measurements count for a quarter: four of them forget three quarters of a wrong start.
GAIN = 0.25
# Cloud links keep their rate for minutes (NetStorm redraws every 180 s): after that, half of the confidence is gone.
HALF_LIFE = 180.0
# Changes beyond this factor are taken at once, not averaged in: a link that fell to a tenth must show in one sample.
JUMP = 2.0


@dataclass(frozen=True, slots=True)
class LinkObservation:
    """One transfer (or probe) over one directed link. Unless `busy`, the link may carry more than was asked of it."""

    source: int
    destination: int
    rate: float
    rtprop: float | None
    nbytes: int
    at: float
    busy: bool = True


@dataclass(slots=True)
class _Known:
    rate: float = 0.0
    rtprop: float = math.inf
    samples: int = 0
    at: float = -math.inf
    blocked: bool = False
    asked: float = -math.inf


class Awareness:
    """Everything known of the links of a job."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], _Known] = {}

    @property
    def informed(self) -> bool:
        """Whether any link was measured."""
        return any(known.samples for known in self._known.values())

    def observe(self, seen: LinkObservation) -> None:
        """Average in one transfer; short ones tell only the round trip, late reports do not undo newer ones."""
        known = self._known.setdefault((seen.source, seen.destination), _Known())
        if seen.rtprop is not None:
            known.rtprop = min(known.rtprop, seen.rtprop)
        if seen.nbytes < LEAST_BYTES or seen.at < known.at:
            return
        if not seen.busy and known.samples and seen.rate < known.rate:
            return  # it was not asked for more: what is known of it stands, and ages
        jumped = known.rate > 0 and not 1 / JUMP < seen.rate / known.rate < JUMP
        first = known.samples == 0 or known.blocked or jumped
        known.rate = seen.rate if first else known.rate + GAIN * (seen.rate - known.rate)
        known.samples = 1 if first else known.samples + 1
        known.at, known.blocked = seen.at, False

    def report(self, observations: Iterable[LinkObservation]) -> None:
        """A member's report, in any order."""
        for seen in sorted(observations, key=lambda seen: seen.at):
            self.observe(seen)

    def blocked(self, source: int, destination: int, at: float) -> None:
        """This way does not work at all (firewall, one-way reachability, cut)."""
        known = self._known.setdefault((source, destination), _Known())
        known.blocked, known.at = True, at

    def probing(self, source: int, destination: int, at: float) -> None:
        """A probe was asked for: whatever comes of it, not again for a while."""
        known = self._known.setdefault((source, destination), _Known())
        known.asked = at

    def forget(self, member: int) -> None:
        """A member left; should it come back, it may sit elsewhere."""
        self._known = {pair: known for pair, known in self._known.items() if member not in pair}

    def matrix(self, members: Sequence[int], now: float, **nodes: Any) -> Matrix:
        """Rates of all pairs; a pair never measured is taken for a slow one (lower quartile) with no confidence.

        `nodes` may give up and down, which no transfer shows by itself.
        """
        size = len(members)
        rate, rtprop, confidence = np.zeros((3, size, size))
        age = np.full((size, size), np.inf)
        known = [entry for entry in self._known.values() if entry.samples and not entry.blocked]
        guess = float(np.percentile([entry.rate for entry in known], 25)) if known else 1.0
        for row, source in enumerate(members):
            for column, destination in enumerate(members):
                entry = self._known.get((source, destination), _Known())
                if row == column or entry.blocked:
                    continue
                rate[row, column] = entry.rate if entry.samples else guess
                rtprop[row, column] = entry.rtprop if math.isfinite(entry.rtprop) else 0.0
                if entry.samples:
                    age[row, column] = max(0.0, now - entry.at)
                    confidence[row, column] = (1 - 0.5**entry.samples) * 0.5 ** (age[row, column] / HALF_LIFE)
        return Matrix.of(rate, rtprop, members, age=age, confidence=confidence, **nodes)

    def to_probe(
        self, members: Sequence[int], now: float, older: float = HALF_LIFE, most: int = 2
    ) -> list[tuple[int, int]]:
        """Links not measured for longer than `older`, oldest first; at most so many, so that probes stay rare."""
        pairs = [(source, destination) for source in members for destination in members if source != destination]
        known = {pair: self._known.get(pair, _Known()) for pair in pairs}
        stale = [(max(entry.at, entry.asked), pair) for pair, entry in known.items() if not entry.blocked]
        return [pair for at, pair in sorted(stale) if now - at > older][:most]
