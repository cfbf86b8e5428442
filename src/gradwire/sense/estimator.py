"""Estimator: what all ranks measured in a step in, a View of the network out. Pure; `now` is passed in.

Where only collectives are timed, a step's time on the network is latency + bytes / bandwidth + waiting for a late rank.
Ranks report when their last bucket was ready (`StepObservation.ready`, in one clock), so waiting is known and removed:

    busy      = median over ranks of (busy - (latest ready - own ready))
    bandwidth = bytes / (busy - the larger of hops x latency and the overhead fitted from different sizes)

RTprop comes from the pulses' round trips. A step whose bytes should take less time than its latency says little about
bandwidth. It counts only together with steps of another size, or when its time differs from the expected one by far
more than the noise. Then it raises the estimate by a bounded factor. It lowers the estimate only where its bytes, at
the lower rate and with the latest round trip, take a considerable part of the time: a small exchange that was slow
because of latency does not mean a slow network. (Without this rule, one short time makes a slow network look fast,
compression ends, and the next step shows the mistake: the level oscillates.)
The delivery rate is the median of the last few steps, so that one disturbed step changes nothing. When the network
changes (sense/change_detector.py) all earlier estimates are dropped, and `View.changes` is incremented.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gradwire.sense.change_detector import LEAST_MOVING, ChangeDetector, StepSample
from gradwire.sense.clock_sync import ClockSync
from gradwire.sense.filters import Ewma, WindowedMax
from gradwire.sense.overhead import Overhead
from gradwire.types import LinkView, StepFacts, View

# NetSenseML's window for the best rate seen.
BEST_WINDOW: Final = 5.0
# Steps whose median is the rate: with noise of 20 % it is within 30 %; the change detector handles lasting changes.
RATES: Final = 5
# Steps of one network after which the confidence is 1: fewer may all be outliers.
SURE: Final = 3
# Bytes must take at least this many times the latency before a step's rate is used as it is.
IDENTIFIES: Final = 0.5
# Otherwise a step must differ from the expected time by this many deviations, and may raise the rate this many times.
UNUSUAL: Final = 4.0
RAISE: Final = 4.0
# The least share of a busy time that counts as network, however wrong the timestamps are.
LEAST_NETWORK: Final = 0.02


@dataclass(frozen=True, slots=True)
class StepObservation:
    """One rank's step, and when its last bucket was ready, in a clock that all observations share; None where the
    offset of that rank's clock is not known."""

    facts: StepFacts
    ready: float | None


@dataclass(slots=True)
class Estimator:
    """Keeps the filters; call `update` once per step."""

    _rtprop: float | None = None
    _last_trip: float = 0.0
    _best: WindowedMax = field(default_factory=lambda: WindowedMax(BEST_WINDOW))
    _rates: deque[float] = field(default_factory=lambda: deque(maxlen=RATES))
    _delay: Ewma = field(default_factory=lambda: Ewma(1 / 8))
    _deviation: Ewma = field(default_factory=lambda: Ewma(1 / 4))
    _trip: Ewma = field(default_factory=lambda: Ewma(1 / 4))
    _overhead: Overhead = field(default_factory=Overhead)
    _detector: ChangeDetector = field(default_factory=ChangeDetector)
    _changes: int = 0
    _samples: int = 0
    _updated: float = 0.0

    def update(self, observations: Sequence[StepObservation], peers: Sequence[ClockSync], now: float) -> View:
        """Add one step as all ranks measured it, and the round trips to all peers."""
        least = [peer.rtprop for peer in peers if peer.rtprop is not None]
        last = [peer.last for peer in peers if peer.last is not None]
        if least and last:  # the farthest peer determines an exchange's latency
            self._rtprop, self._last_trip = max(least), max(last)
            self._trip.add(self._last_trip)
        if observations:
            self._take(observations, now)
        return self.view(now)

    def view(self, now: float) -> View:
        rtprop = self._rtprop
        smooth = self._trip.value
        link = LinkView(
            rtprop=rtprop,
            bandwidth=self._known,
            best=self._best.value,
            overhead=self._overhead.seconds,
            queueing=max(0.0, smooth - rtprop) if rtprop is not None and smooth is not None else 0.0,
            delay=self._delay.value or 0.0,
            variation=self._deviation.value or 0.0,
            age=now - self._updated if self._samples else 0.0,
            confidence=min(1.0, self._samples / SURE),
        )
        return View(link, changes=self._changes)

    @property
    def _known(self) -> float | None:
        return statistics.median(self._rates) if self._rates else None

    def _take(self, observations: Sequence[StepObservation], now: float) -> None:
        latest = max((seen.ready for seen in observations if seen.ready is not None), default=0.0)
        waited = [0.0 if seen.ready is None else latest - seen.ready for seen in observations]
        own = [
            max(seen.facts.busy - wait, LEAST_NETWORK * seen.facts.busy)
            for seen, wait in zip(observations, waited, strict=True)
        ]
        busy = statistics.median(own)
        wire = max(seen.facts.wire_bytes for seen in observations)
        if busy <= 0 or wire <= 0:
            return
        hops = max(seen.facts.hops for seen in observations)
        sample = StepSample(wire, busy, hops * (self._rtprop or 0.0) / 2)
        since, known = self._detector.take(sample), self._known
        if since:
            self._forget()
        for one in since or [sample]:
            self._learn(one, known, now, hops * self._last_trip / 2)
        if not self._rates and known is not None:
            self._rates.append(known)  # no step of the new network gave a rate

    def _forget(self) -> None:
        """Drop the estimates: the network changed."""
        self._changes += 1
        self._samples = 0
        self._rates.clear()
        self._best, self._overhead = WindowedMax(BEST_WINDOW), Overhead()
        self._delay, self._deviation = Ewma(1 / 8), Ewma(1 / 4)

    def _learn(self, sample: StepSample, known: float | None, now: float, latest: float) -> None:
        self._samples += 1
        delay = self._delay.value
        self._deviation.add(0.0 if delay is None else abs(sample.busy - delay))
        self._delay.add(sample.busy)
        waiting = max(sample.latency, self._overhead.take(sample.nbytes, sample.busy))
        rate = self._rate(sample, known, waiting, latest)
        if rate is not None:
            self._updated = now
            self._rates.append(rate)
            self._best.add(rate, now)

    def _rate(self, sample: StepSample, known: float | None, waiting: float, latest: float) -> float | None:
        """The bandwidth that the step measures; None where it measures none. `latest` is its latency by the last round
        trip."""
        moving = max(sample.busy - waiting, LEAST_MOVING * sample.busy)
        rate = sample.nbytes / moving
        if known is None or sample.nbytes / known >= IDENTIFIES * waiting:
            return rate
        expected = waiting + sample.nbytes / known
        if abs(sample.busy - expected) <= UNUSUAL * self._detector.noise * expected:
            return self._overhead.rate
        if sample.busy < expected:
            return min(rate, RAISE * known)
        waiting = max(waiting, latest)
        moving = sample.busy - waiting
        return sample.nbytes / moving if moving >= IDENTIFIES * waiting else None
