"""ACK statistics: replaces the estimates from steps and pulses by what the transport's acknowledgements measure.

Times of steps and pulses include delays of the training threads; the transport itself times an ACK. Where there are
ACKs, they give round trips, queueing, loss and bandwidth. Each rank summarises its links (`AckMeter`), pulses carry the
summaries to rank 0, and there the group takes the worst rank's values (`AckStats`). The time of a step's
synchronisation and its variation are not replaced: they describe the job, not a link.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from gradwire.sense.estimator import BEST_WINDOW
from gradwire.sense.filters import WindowedMax
from gradwire.types import Acks, LinkView, View

# The least bytes since the last sample, and the least seconds for them, that give a rate.
LEAST_BYTES: Final = 64 * 1024
LEAST_SECONDS: Final = 1e-4
# Median of three: one outlier is ignored, and a change is accepted at its second step.
RATES: Final = 3

# Bytes acknowledged while data was in flight, and the seconds that took, since the connection began.
AckedTotals = tuple[float, float]


@dataclass(slots=True)
class AckMeter:
    """Summarises one rank's links; call `take` once per step."""

    _before: dict[int, AckedTotals] = field(default_factory=dict)
    _rate: float | None = None

    def take(self, links: Mapping[int, LinkView], totals: Mapping[int, AckedTotals]) -> Acks:
        known = [link for link in links.values() if link.rtprop is not None and link.confidence > 0]
        since = [_difference(now, self._before.get(peer, (0.0, 0.0))) for peer, now in totals.items()]
        nbytes = sum(one for one, _ in since)
        # Links work in parallel: an exchange ends when its slowest link is done.
        seconds = max((one for _, one in since), default=0.0)
        if nbytes >= LEAST_BYTES and seconds >= LEAST_SECONDS:
            self._rate, self._before = nbytes / seconds, dict(totals)
        if not known:
            return Acks()
        return Acks(
            rtprop=max(link.rtprop for link in known if link.rtprop is not None),
            bandwidth=self._rate,
            queueing=max(link.queueing for link in known),
            loss=max(link.loss for link in known),
        )


def _difference(now: AckedTotals, before: AckedTotals) -> AckedTotals:
    return now[0] - before[0], now[1] - before[1]


@dataclass(slots=True)
class AckStats:
    """Rank 0's: a View from steps and pulses in, the View with the values of all ranks' acknowledgements out."""

    _rates: deque[float] = field(default_factory=lambda: deque(maxlen=RATES))
    _best: WindowedMax = field(default_factory=lambda: WindowedMax(BEST_WINDOW))
    _changes: int = 0

    def update(self, view: View, rank: int, links: Mapping[int, LinkView], reports: Iterable[Acks], now: float) -> View:
        """`links` are rank 0's own; `reports` are the summaries of all ranks, including rank 0."""
        if view.changes != self._changes:
            self._forget(view.changes)
        sums = [acks for acks in reports if acks.rtprop is not None]
        if not sums:
            return view
        group = replace(
            view.group,
            rtprop=max(acks.rtprop for acks in sums if acks.rtprop is not None),
            queueing=max(acks.queueing for acks in sums),
            loss=max(acks.loss for acks in sums),
        )
        rates = [acks.bandwidth for acks in sums if acks.bandwidth is not None]
        if len(rates) == len(sums):
            self._rates.append(min(rates))
            bandwidth = statistics.median(self._rates)
            self._best.add(bandwidth, now)
            group = replace(group, bandwidth=bandwidth, best=self._best.value, confidence=len(self._rates) / RATES)
        known = {(rank, peer): link for peer, link in links.items() if link.rtprop is not None and link.confidence > 0}
        return replace(view, group=group, links={**view.links, **known})

    def _forget(self, changes: int) -> None:
        """After a network change: drop the best rate, and keep only the last rate, which may be of the new network."""
        self._changes = changes
        self._best = WindowedMax(BEST_WINDOW)
        while len(self._rates) > 1:
            self._rates.popleft()
