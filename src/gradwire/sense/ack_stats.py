"""ACK statistics: replaces the estimates from steps and pulses by what the transport's acknowledgements measure.

Times of steps and pulses include delays of the training threads; the transport itself times an ACK. ACKs come from LTP,
and from the kernel for TCP (sense/tcp_links.py). Where there are any, they give round trips, queueing, loss and
bandwidth. Each rank summarises its links (`AckMeter`), pulses carry the summaries to rank 0, and there the group takes
the worst rank's values (`AckStats`). The time of a step's synchronisation and its variation are not replaced: they
describe the job, not a link.

A link's bandwidth is known only where the path limited it. What the links carry together is each one's rate, weighted
by the share of the time that it was busy: links that take turns do not add up. Other steps give a lower bound.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from gradwire.sense.estimator import BEST_WINDOW
from gradwire.sense.filters import WindowedMax
from gradwire.sense.floor import Floor
from gradwire.types import Acks, LinkView, View

# The least bytes since the last sample, and the least seconds for them, that give a rate.
LEAST_BYTES: Final = 64 * 1024
LEAST_SECONDS: Final = 1e-4
# Links that carried a smaller share of the bytes (pulses, torch's store) need no rate of their own.
CARRIES: Final = 0.05
# A rate is compared with what was carried where bytes took this many round trips: then the window was open most of the
# time, and the rate cannot exceed what was carried by more than EXCEEDS (tails of lost packets, links that end early).
LONG: Final = 8.0
EXCEEDS: Final = 1.5
# Median of three: one outlier is ignored, and a change is accepted at its second step.
RATES: Final = 3

# Bytes acknowledged while data was in flight, and the seconds that took, since the connection began.
AckedTotals = tuple[float, float]


@dataclass(slots=True)
class AckMeter:
    """Summarises one rank's links; call `take` once per step."""

    _before: dict[int, AckedTotals] = field(default_factory=dict)
    _busy: float = 0.0

    def take(
        self,
        links: Mapping[int, LinkView],
        totals: Mapping[int, AckedTotals],
        busy: float = 0.0,
        *,
        in_turns: bool = False,
    ) -> Acks:
        """`busy` is the time of the step's operations; `in_turns`: links may have been used one after another."""
        known = [link for link in links.values() if link.rtprop is not None and link.confidence > 0]
        self._busy += busy
        since = {peer: _difference(now, self._before.get(peer, (0.0, 0.0))) for peer, now in totals.items()}
        bandwidth, floor, carrying = None, 0.0, list[int]()
        nbytes = sum(moved for moved, _ in since.values())
        # Links work in parallel: an exchange ends when its slowest link is done.
        longest = max((seconds for _, seconds in since.values()), default=0.0)
        if nbytes >= LEAST_BYTES and longest >= LEAST_SECONDS:
            carrying = [peer for peer, (moved, _) in since.items() if moved >= CARRIES * nbytes]
            spent = sum(since[peer][1] for peer in carrying)
            longest = max(longest, min(self._busy, spent)) if in_turns else longest
            floor = nbytes / max(longest, self._busy)
            trip = max((link.rtprop for link in known if link.rtprop is not None), default=0.0)
            most = EXCEEDS * nbytes / longest if longest >= LONG * trip else float("inf")
            bandwidth = _together(carrying, links, since, longest)
            bandwidth = None if bandwidth is None else max(min(bandwidth, most), floor)
            self._before, self._busy = dict(totals), 0.0
        if not known:
            return Acks()
        return Acks(
            rtprop=max(link.rtprop for link in known if link.rtprop is not None),
            bandwidth=bandwidth,
            queueing=max(link.queueing for link in known),
            loss=max(link.loss for link in known),
            floor=floor,
            restart=max((links[peer].restart for peer in carrying if peer in links), default=0.0),
        )


def _together(
    carrying: Iterable[int], links: Mapping[int, LinkView], since: Mapping[int, AckedTotals], longest: float
) -> float | None:
    """What the links carry together, each while it is busy; None where one of them was not limited by its path."""
    total = 0.0
    for peer in carrying:
        rate = links[peer].bandwidth if peer in links else None
        if rate is None:
            return None
        total += rate * since[peer][1] / longest
    return total or None


def _difference(now: AckedTotals, before: AckedTotals) -> AckedTotals:
    """Since `before`; a connection that was opened again counts from zero."""
    return now if now[0] < before[0] else (now[0] - before[0], max(0.0, now[1] - before[1]))


def restarts(reports: Iterable[Acks]) -> bool | None:
    """Whether transfers are known to begin with a small window; None where acknowledgements do not tell."""
    return any(acks.restart > 0 for acks in reports) or None


@dataclass(slots=True)
class AckStats:
    """Rank 0's: a View from steps and pulses in, the View with the values of all ranks' acknowledgements out."""

    _rates: deque[float] = field(default_factory=lambda: deque(maxlen=RATES))
    _best: WindowedMax = field(default_factory=lambda: WindowedMax(BEST_WINDOW))
    _floor: Floor = field(default_factory=Floor)
    _changes: int = 0
    _updated: float = 0.0

    def update(self, view: View, rank: int, links: Mapping[int, LinkView], reports: Iterable[Acks], now: float) -> View:
        """`links` are rank 0's own; `reports` are the summaries of all ranks, including rank 0."""
        if view.changes != self._changes:
            self._forget(view.changes)
        sums = [acks for acks in reports if acks.rtprop is not None]
        if not sums:
            return view
        self._floor.add(min(acks.floor for acks in sums))
        group = replace(
            view.group,
            rtprop=max(acks.rtprop for acks in sums if acks.rtprop is not None),
            queueing=max(acks.queueing for acks in sums),
            loss=max(acks.loss for acks in sums),
            floor=max(view.group.floor, self._floor.value),
            restart=max(acks.restart for acks in sums),
        )
        rates = [acks.bandwidth for acks in sums if acks.bandwidth is not None]
        if len(rates) == len(sums):
            self._rates.append(min(rates))
            self._best.add(statistics.median(self._rates), now)
            self._updated = now
        if self._rates:
            # A rate from before may have been exceeded since by a sender with little to send.
            bandwidth = max(statistics.median(self._rates), group.floor)
            sure, age = len(self._rates) / RATES, now - self._updated
            group = replace(group, bandwidth=bandwidth, best=self._best.value, confidence=sure, age=age)
        known = {(rank, peer): link for peer, link in links.items() if link.rtprop is not None and link.confidence > 0}
        return replace(view, group=group, links={**view.links, **known})

    def _forget(self, changes: int) -> None:
        """After a network change: drop the best rate, and keep only the last rate, which may be of the new network."""
        self._changes = changes
        self._best = WindowedMax(BEST_WINDOW)
        self._floor = Floor()
        while len(self._rates) > 1:
            self._rates.popleft()
