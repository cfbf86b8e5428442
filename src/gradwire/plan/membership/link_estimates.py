"""Link estimates: what the coordinator knows of all links (network awareness), turned into a Matrix on demand.

In: LinkObservations (source, destination, bytes per second, round trip) from LTP's ACKs, reported off the critical
path; blocked links; the time. Out: a Matrix with age and confidence, and the links to probe: those that carry nothing
and were not measured for a long time. Times are the caller's clock; nothing here waits or sends.
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
# Weight of a new measurement: after four of them a third of a wrong first value is left.
GAIN = 0.25
# Seconds until confidence halves: cloud links keep their rate for minutes (NetStorm redraws every 180 s).
HALF_LIFE = 180.0
# A change by more than this factor replaces the estimate, so that one sample is enough to notice a link that fell to a
# tenth of its rate.
JUMP = 2.0


@dataclass(frozen=True, slots=True)
class LinkObservation:
    """One transfer (or probe) over one directed link. Unless `busy`, the link may carry more than `rate`."""

    source: int
    destination: int
    rate: float
    rtprop: float | None
    nbytes: int
    at: float
    busy: bool = True


@dataclass(slots=True)
class _LinkEstimate:
    rate: float = 0.0
    rtprop: float = math.inf
    samples: int = 0
    # Whether a transfer that the link limited was seen; else `rate` is a lower bound.
    filled: bool = False
    at: float = -math.inf
    blocked: bool = False
    probe_requested_at: float = -math.inf


class Awareness:
    """Estimates of all links of a job."""

    def __init__(self) -> None:
        self._links: dict[tuple[int, int], _LinkEstimate] = {}
        # How often more than before became known of a link that was never seen at its limit: a first rate, a lower
        # bound that is JUMP times as high, or the rate. That happens a few times to every link, and then no more.
        self.news = 0

    @property
    def informed(self) -> bool:
        """Whether any link was measured."""
        return any(known.samples for known in self._links.values())

    def observe(self, seen: LinkObservation) -> None:
        """Add one transfer. Short ones update only the round trip; late reports do not override newer ones."""
        known = self._links.setdefault((seen.source, seen.destination), _LinkEstimate())
        if seen.rtprop is not None:
            known.rtprop = min(known.rtprop, seen.rtprop)
        if seen.nbytes < LEAST_BYTES or seen.at < known.at:
            return
        if not seen.busy and known.samples and seen.rate < known.rate:
            return  # the link was not saturated, so this is a lower bound: keep the estimate
        jumped = known.rate > 0 and not 1 / JUMP < seen.rate / known.rate < JUMP
        first = known.samples == 0 or known.blocked or jumped or (seen.busy and not known.filled)
        if first and not (known.filled or known.blocked):
            self.news += 1
        known.filled = known.filled or seen.busy
        known.rate = seen.rate if first else known.rate + GAIN * (seen.rate - known.rate)
        known.samples = 1 if first else known.samples + 1
        known.at, known.blocked = seen.at, False

    def report(self, observations: Iterable[LinkObservation]) -> None:
        """Add the observations of a report, in order of time."""
        for seen in sorted(observations, key=lambda seen: seen.at):
            self.observe(seen)

    def blocked(self, source: int, destination: int, at: float) -> None:
        """This direction does not work (firewall, one-way reachability, broken link)."""
        known = self._links.setdefault((source, destination), _LinkEstimate())
        known.blocked, known.at = True, at

    def probe_requested(self, source: int, destination: int, at: float) -> None:
        """A probe was requested; request no other for a while, whatever its result."""
        known = self._links.setdefault((source, destination), _LinkEstimate())
        known.probe_requested_at = at

    def matrix(self, members: Sequence[int], now: float, **nodes: Any) -> Matrix:
        """Rates of all pairs; a pair without measurements gets the lower quartile of the others, with no confidence.

        `nodes` may give `up` and `down`, which single transfers do not show.
        """
        size = len(members)
        rate, rtprop, confidence = np.zeros((3, size, size))
        age = np.full((size, size), np.inf)
        known = [entry for entry in self._links.values() if entry.samples and not entry.blocked]
        guess = float(np.percentile([entry.rate for entry in known], 25)) if known else 1.0
        for row, source in enumerate(members):
            for column, destination in enumerate(members):
                entry = self._links.get((source, destination), _LinkEstimate())
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
        """Links not measured for longer than `older` seconds, oldest first, at most `most` of them. Those of which only
        a lower bound is known count as never measured."""
        pairs = [(source, destination) for source in members for destination in members if source != destination]
        known = {pair: self._links.get(pair, _LinkEstimate()) for pair in pairs}
        measured = {pair: entry.at if entry.filled else -math.inf for pair, entry in known.items()}
        stale = [
            (max(measured[pair], entry.probe_requested_at), pair) for pair, entry in known.items() if not entry.blocked
        ]
        return [pair for at, pair in sorted(stale) if now - at > older][:most]


class KnownNetwork:
    """The network to plan by: measured links once there are any, before that the configured matrix.

    With `aware` off, measurements are ignored.
    """

    def __init__(self, configured: Matrix, aware: bool = True) -> None:
        self.aware, self.links = aware, Awareness()
        self._configured = configured

    def begin(self, now: float) -> None:
        """Start with what the configured matrix says about links; a rate of less than full confidence is a lower
        bound."""
        matrix = self._configured
        for row, source in enumerate(matrix.members):
            for column, destination in enumerate(matrix.members):
                rate, rtprop = float(matrix.rate[row, column]), float(matrix.rtprop[row, column])
                if row != column and rate <= 0:
                    self.links.blocked(source, destination, now)
                elif row != column and (known := float(matrix.confidence[row, column])) > 0:
                    seen = LinkObservation(source, destination, rate, rtprop, LEAST_BYTES, now, busy=known >= 1.0)
                    self.links.observe(seen)

    def matrix(self, members: Sequence[int], now: float) -> Matrix:
        configured = self._configured.only(members)
        if not self.aware or not self.links.informed:
            return configured
        return self.links.matrix(configured.members, now, up=configured.up, down=configured.down)
