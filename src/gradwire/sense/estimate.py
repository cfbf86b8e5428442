"""Estimate: the step facts of all ranks in, a View of the network out. Pure; `now` is passed in.

Where only collectives are seen, an operation's time is latency + bytes / bandwidth + waiting for a late rank. The rank
that came last did not wait, so the least time over ranks is network time. Latency comes from the pulses, which are too
small for bandwidth to matter; bandwidth from the bytes and busy time of whole steps, once latency is taken off:

    bandwidth = bytes / (busy - hops x latency)

A step whose bytes pass in less time than its latency says only "at least this fast"; it may raise the estimate, never
lower it. RTprop and delay_low are windowed minima; the delivery rate is the median of the last few steps, so that one
disturbed step changes nothing and a real change is believed after two.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gradwire.flow import LinkView, StepFacts, View
from gradwire.sense.filters import Ewma, WindowedMax, WindowedMin

# A path change (a new route, a moved phone) shows in the minimum after this long.
RTPROP_WINDOW: Final = 60.0
# NetSenseML's window for the best rate seen.
BEST_WINDOW: Final = 5.0
# Median of three: one outlier is ignored, a change is believed at its second step.
RATES: Final = 3
# Bytes must take this many times the latency before they say something about bandwidth.
IDENTIFIES: Final = 0.5


@dataclass(slots=True)
class Estimator:
    """Keeps the filters; `update` is called once per step with what all ranks measured."""

    _rtprop: WindowedMin = field(default_factory=lambda: WindowedMin(RTPROP_WINDOW))
    _best: WindowedMax = field(default_factory=lambda: WindowedMax(BEST_WINDOW))
    _rates: deque[float] = field(default_factory=lambda: deque(maxlen=RATES))
    _delay: Ewma = field(default_factory=lambda: Ewma(1 / 8))
    _deviation: Ewma = field(default_factory=lambda: Ewma(1 / 4))
    _latency: Ewma = field(default_factory=lambda: Ewma(1 / 4))
    _samples: int = 0
    _updated: float = 0.0

    def update(self, facts: Sequence[StepFacts], latencies: Sequence[float], now: float) -> View:
        """Take in one step as all ranks saw it."""
        seen = [latency for latency in latencies if latency > 0]
        if seen:
            self._rtprop.add(2 * min(seen), now)
            self._latency.add(min(seen))
        if facts:
            self._take(facts, now)
        return self.view(now)

    def view(self, now: float) -> View:
        rtprop = self._rtprop.value
        queueing = 0.0
        if rtprop is not None and self._latency.value is not None:
            queueing = max(0.0, self._latency.value - rtprop / 2)
        link = LinkView(
            rtprop=rtprop,
            bandwidth=statistics.median(self._rates) if self._rates else None,
            best=self._best.value,
            queueing=queueing,
            delay=self._delay.value or 0.0,
            variation=self._deviation.value or 0.0,
            age=now - self._updated if self._samples else 0.0,
            confidence=min(1.0, self._samples / RATES),
        )
        return View(link)

    def _take(self, facts: Sequence[StepFacts], now: float) -> None:
        busy = min(fact.busy for fact in facts)  # the last to come waited for nobody
        wire = max(fact.wire_bytes for fact in facts)
        hops = max(fact.hops for fact in facts)
        if busy <= 0 or wire <= 0:
            return
        self._samples += 1
        self._updated = now
        delay = self._delay.value
        self._deviation.add(0.0 if delay is None else abs(busy - delay))
        self._delay.add(busy)
        waiting = hops * (self._rtprop.value or 0.0) / 2
        # Latency cannot be more than what is left of a busy time that also moved bytes.
        moving = max(busy - waiting, 0.1 * busy)
        rate = wire / moving
        known = statistics.median(self._rates) if self._rates else 0.0
        if moving >= IDENTIFIES * waiting or rate > known:
            self._rates.append(rate)
            self._best.add(rate, now)
