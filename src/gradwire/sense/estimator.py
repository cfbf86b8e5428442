"""Estimator: what all ranks measured in a step in, a View of the network out. Pure; `now` is passed in.

Where only collectives are timed, a step's time on the network is latency + overhead + slow start + bytes / bandwidth +
waiting for a late rank. Ranks report when their last bucket was ready (`StepObservation.ready`, in one clock), so
waiting is known and removed; the rank that waited least bounds what is left:

    busy = median over ranks of the larger of (busy - (latest ready - own ready)) and the least busy time of any rank

RTprop comes from the pulses' round trips; what pulses usually take above it is the machine's part. Times of operations
give a range of bandwidths (sense/alpha_beta.py). What follows from it:

    1. the range is narrow: the bandwidth is identified. One size of operation may raise the estimate at any time, but
       lowers it only if it is as large as what the estimate came from, or that is long ago: time that a small exchange
       takes besides its bytes does not mean a slow network
    2. the range is wide: the estimate stays what it was, None at first; `View.age` says since when
    3. bytes / busy, with nothing subtracted, is a lower bound always (`floor`)
    4. the network changes (sense/change_detector.py, on whole steps): estimates are dropped, `View.changes` is
       incremented. Until the new network is identified, the estimate is the old one, moved into the new range
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gradwire.sense.alpha_beta import AlphaBeta, Fit, Timed, Transport
from gradwire.sense.change_detector import ChangeDetector, StepSample
from gradwire.sense.clock_sync import ClockSync
from gradwire.sense.filters import Ewma, WindowedMax
from gradwire.sense.floor import Floor
from gradwire.sense.slow_start import LEAST_TIMEOUT
from gradwire.types import LinkView, StepFacts, View

# NetSenseML's window for the best rate seen.
BEST_WINDOW: Final = 5.0
# Steps whose median is the rate: with noise of 20 % it is within 30 %; the change detector handles lasting changes.
RATES: Final = 3
# Operations of one network after which the confidence is 1: fewer may all be outliers.
SURE: Final = 3
# The confidence of an estimate that was moved into a new network's range.
MOVED: Final = 0.25
# A size up to this factor below the one that the estimate came from may lower it.
AS_LARGE: Final = 1.5
# Steps whose median is the present round trip of pulses, as with rates.
TRIPS: Final = 3


@dataclass(frozen=True, slots=True)
class StepObservation:
    """One rank's step, and when its last bucket was ready, in a clock that all observations share; None where the
    offset of that rank's clock is not known."""

    facts: StepFacts
    ready: float | None


@dataclass(slots=True)
class Estimator:
    """Keeps the filters; call `update` once per step. `slow_start`: whether the transport begins a step with a small
    window (TCP does after a pause longer than its timeout); None where that is not known."""

    slow_start: bool | None = None
    _rtprop: float | None = None
    _best: WindowedMax = field(default_factory=lambda: WindowedMax(BEST_WINDOW))
    _rates: deque[float] = field(default_factory=lambda: deque(maxlen=RATES))
    _source: Fit | None = None
    _floor: Floor = field(default_factory=Floor)
    _delay: Ewma = field(default_factory=lambda: Ewma(1 / 8))
    _deviation: Ewma = field(default_factory=lambda: Ewma(1 / 4))
    _trip: Ewma = field(default_factory=lambda: Ewma(1 / 4))
    _trips: deque[float] = field(default_factory=lambda: deque(maxlen=TRIPS))
    _fits: AlphaBeta = field(default_factory=AlphaBeta)
    _overhead: float = 0.0
    _detector: ChangeDetector = field(default_factory=ChangeDetector)
    _transport: Transport = field(default_factory=Transport)
    _changes: int = 0
    _confidence: float = 0.0
    _updated: float = 0.0

    def update(self, observations: Sequence[StepObservation], peers: Sequence[ClockSync], now: float) -> View:
        """Add one step as all ranks measured it, and the round trips to all peers."""
        least = [peer.rtprop for peer in peers if peer.rtprop is not None]
        last = [peer.last for peer in peers if peer.last is not None]
        if least and last:  # the farthest peer determines an exchange's latency
            self._rtprop = max(least)
            self._trip.add(max(last))
            self._trips.append(max(last))
        if observations:
            self._take(observations, now)
        return self.view(now)

    def view(self, now: float) -> View:
        rtprop = self._rtprop
        smooth = self._trip.value
        known = self._known
        link = LinkView(
            rtprop=rtprop,
            bandwidth=known if known is None else max(known, self._floor.value),
            best=self._best.value,
            overhead=self._overhead,
            queueing=max(0.0, smooth - rtprop) if rtprop is not None and smooth is not None else 0.0,
            delay=self._delay.value or 0.0,
            variation=self._deviation.value or 0.0,
            age=now - self._updated if self._rates else 0.0,
            confidence=self._confidence if self._rates else 0.0,
            floor=self._floor.value,
        )
        return View(link, changes=self._changes)

    @property
    def _known(self) -> float | None:
        return statistics.median(self._rates) if self._rates else None

    def _take(self, observations: Sequence[StepObservation], now: float) -> None:
        sample = self._sample(observations)
        if sample is None:
            return
        since, known = self._detector.take(sample), self._known
        if since:
            self._forget()
        for one in since or [sample]:
            self._learn(one, now)
        if since and known is not None and not self._rates:
            self._move(known, sample)  # 4

    def _sample(self, observations: Sequence[StepObservation]) -> StepSample | None:
        """The step of the whole group; None where nothing was sent."""
        latest = max((seen.ready for seen in observations if seen.ready is not None), default=0.0)
        least = min(seen.facts.busy for seen in observations)
        own = [
            max(seen.facts.busy - (0.0 if seen.ready is None else latest - seen.ready), least) for seen in observations
        ]
        busy, wire = statistics.median(own), max(seen.facts.wire_bytes for seen in observations)
        if busy <= 0 or wire <= 0:
            return None
        hops = max(seen.facts.hops for seen in observations)
        rtprop, slow_start = self._rtprop or 0.0, self.slow_start
        pause = max(seen.facts.seconds - seen.facts.busy for seen in observations)
        if slow_start is None and pause <= LEAST_TIMEOUT + rtprop:
            slow_start = False
        self._transport = Transport(rtprop, slow_start, max(1, hops))
        return StepSample(wire, busy, hops * (self._rtprop or 0.0) / 2, hops * self._jitter / 2)

    @property
    def _jitter(self) -> float:
        """What a round trip of pulses takes above the least, at present."""
        return max(0.0, statistics.median(self._trips) - (self._rtprop or 0.0)) if self._trips else 0.0

    def _forget(self) -> None:
        """Drop the estimates: the network changed."""
        self._changes += 1
        self._rates.clear()
        self._confidence, self._overhead, self._source = 0.0, 0.0, None
        self._best, self._fits, self._floor = WindowedMax(BEST_WINDOW), AlphaBeta(), Floor()
        self._delay, self._deviation = Ewma(1 / 8), Ewma(1 / 4)

    def _learn(self, sample: StepSample, now: float) -> None:
        delay = self._delay.value
        self._deviation.add(0.0 if delay is None else abs(sample.busy - delay))
        self._delay.add(sample.busy)
        self._floor.add(sample.nbytes / sample.busy)  # 3
        self._fits.add(Timed(sample.nbytes, sample.busy, min(sample.latency, sample.busy), sample.jitter))
        fit = self._fit(sample)
        if fit is None:
            return
        if fit.pair:
            self._overhead = fit.overhead
        if fit.identified:
            self._accept(fit, now)  # 1
        elif self._rates and fit.lower > (self._known or 0.0):
            self._rates.append(fit.lower)

    def _fit(self, sample: StepSample) -> Fit | None:
        return self._fits.fit(sample.nbytes, self._transport, self._overhead, self._detector.noise)

    def _accept(self, fit: Fit, now: float) -> None:
        known, source = self._known, self._source
        rate = fit.rate
        if known is not None and source is not None and not fit.pair:
            if known > fit.upper and fit.nbytes * AS_LARGE < source.nbytes and self._fits.seen(source.nbytes):
                return
            # Two sizes know better than the range that one size alone gives.
            rate = min(max(known, fit.lower), fit.upper) if source.pair else fit.rate
        elif source is not None and not source.pair:
            self._rates.clear()  # what one size shows contains overhead
        self._rates.append(rate)
        self._best.add(rate, now)
        self._floor.lower(max(self._rates))
        self._source, self._updated = fit if source is None or fit.pair or not source.pair else source, now
        self._confidence = min(1.0, fit.samples / SURE) * min(1.0, 1.0 - (fit.width - 1.0) / 2)

    def _move(self, known: float, sample: StepSample) -> None:
        fit = self._fit(sample)
        if fit is not None:
            known = min(max(known, fit.lower), fit.upper)
        self._rates.append(known)
        self._confidence = MOVED
