"""Acknowledged: what a transport's acknowledgements say of the network takes the place of what steps and pulses guess.

Steps and pulses share the training threads' lateness; an ACK is timed by the transport itself. Where there are ACKs,
round trips, queueing, loss and bandwidth are theirs. Each rank sums up its links (`Meter`), pulses carry the sums to
rank 0, and there the group is as its worst rank (`AckStats`). How long a step's synchronisation takes, and by how
much that varies, stays as it was: that is about the job, not about a link.
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

# Bytes a rank must have moved since the last look, and seconds that must have taken, to say something of a rate.
LEAST_BYTES: Final = 64 * 1024
LEAST_SECONDS: Final = 1e-4
# Median of three: one outlier is ignored, and what acknowledgements say of a change is believed at its second step.
RATES: Final = 3

# Bytes acknowledged while data was under way, and the seconds that took, since the connection began.
Moved = tuple[float, float]


@dataclass(slots=True)
class Meter:
    """One rank's links, looked at once a step."""

    _before: dict[int, Moved] = field(default_factory=dict)
    _rate: float | None = None

    def take(self, links: Mapping[int, LinkView], moved: Mapping[int, Moved]) -> Acks:
        known = [link for link in links.values() if link.rtprop is not None and link.confidence > 0]
        since = [_less(now, self._before.get(peer, (0.0, 0.0))) for peer, now in moved.items()]
        nbytes = sum(one for one, _ in since)
        # Links work at the same time: an exchange is over when its slowest link is.
        seconds = max((one for _, one in since), default=0.0)
        if nbytes >= LEAST_BYTES and seconds >= LEAST_SECONDS:
            self._rate, self._before = nbytes / seconds, dict(moved)
        if not known:
            return Acks()
        return Acks(
            rtprop=max(link.rtprop for link in known if link.rtprop is not None),
            bandwidth=self._rate,
            queueing=max(link.queueing for link in known),
            loss=max(link.loss for link in known),
        )


def _less(now: Moved, before: Moved) -> Moved:
    return now[0] - before[0], now[1] - before[1]


@dataclass(slots=True)
class AckStats:
    """Rank 0's: a View from steps and pulses in, the same with what all ranks' acknowledgements say out."""

    _rates: deque[float] = field(default_factory=lambda: deque(maxlen=RATES))
    _best: WindowedMax = field(default_factory=lambda: WindowedMax(BEST_WINDOW))
    _changes: int = 0

    def update(self, view: View, rank: int, links: Mapping[int, LinkView], told: Iterable[Acks], now: float) -> View:
        """`links` are rank 0's own; `told` are the sums of every rank, its own among them."""
        if view.changes != self._changes:
            self._forget(view.changes)
        sums = [acks for acks in told if acks.rtprop is not None]
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
        """Another network: what was best on the old one says nothing, and only the last rate may be of the new one."""
        self._changes = changes
        self._best = WindowedMax(BEST_WINDOW)
        while len(self._rates) > 1:
            self._rates.popleft()
