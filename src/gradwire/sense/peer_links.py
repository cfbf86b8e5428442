"""PeerLinks: what a rank knows of its link to each other rank, from the acknowledgements of whatever carries gradients.

In: once a step, the links of that step and what moved over them. Out: LinkFacts of a peer, which pulses carry to
rank 0. Several connections may lead to one peer and be used one after another: the fastest counts.

A rate counts only where the path limited it: acknowledgements say so, or a queue was built up while a transfer took
some round trips; then the rate is that of the transfer without one round trip. Everything else is a lower bound,
likewise without the round trip in which the last bytes were on their way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gradwire.sense.filters import WindowedMax
from gradwire.types import LinkFacts, LinkView

# Of the last RATES rates, the one that so few exceed counts: transfers that run side by side take turns at a line, so
# what a link carried in a bad moment is not its rate; the highest samples are those of acknowledgements that arrived in
# bursts. Fewer than LEAST rates are a lower bound only.
RATES: Final = 16
EXCEED: Final = 0.2
LEAST: Final = 6
# Seconds for which what was sent to all peers at once is remembered.
TOGETHER: Final = 60.0
# A transfer shows a rate from so many bytes and round trips on, and where round trips were longer than the least by
# this share of it and this many seconds: more than the scheduling of two hosts explains.
LEAST_BYTES: Final = 16 * 1024
TRIPS: Final = 2.0
QUEUE_SHARE: Final = 0.25
QUEUE_SECONDS: Final = 0.002

# Bytes acknowledged while data was in flight, and the seconds that took, since the connection began.
Moved = tuple[float, float]


@dataclass(slots=True)
class _Peer:
    rtprop: float = 0.0
    floor: float = 0.0
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=RATES))


class PeerLinks:
    """One rank's links. Call `take` once per step."""

    def __init__(self) -> None:
        self._peers: dict[int, _Peer] = {}
        self._before: dict[int, Moved] = {}
        self._together = WindowedMax(TOGETHER)

    def take(
        self,
        links: Mapping[int, LinkView],
        moved: Mapping[int, Moved],
        now: float,
        ranks: Mapping[int, tuple[int, ...]] | None = None,
    ) -> None:
        """The links of a step, and what moved over them so far; `ranks` are those that each leads to, None where links
        are numbered by rank."""
        rates: dict[tuple[int, ...], float] = {}
        carried: dict[tuple[int, ...], float] = {}
        for key, link in links.items():
            ends = (key,) if ranks is None else ranks.get(key, ())
            since = self._since(key, moved.get(key))
            rate, floor = _rates(link, since)
            for rank in ends:
                self._note(rank, link, floor)
            if ends and rate:
                rates[ends] = max(rates.get(ends, 0.0), rate)
            if ends:
                carried[ends] = max(carried.get(ends, 0.0), rate, _carried(since))
        self._before = dict(moved)
        for ends, rate in rates.items():
            for rank in ends:
                self._peers[rank].rates.append(rate)
        if any(carried.values()):
            self._together.add(sum(carried.values()), now)

    def facts(self, peer: int, trip: float | None = None) -> LinkFacts:
        """What is known of the link to a peer; `trip` is a round trip that was measured by other means."""
        known = self._peers.get(peer, _Peer())
        rate = sorted(known.rates)[-1 - int(EXCEED * len(known.rates))] if known.rates else 0.0
        trips = [one for one in (known.rtprop, trip) if one]
        least, rate = max(known.floor, rate), rate if len(known.rates) >= LEAST else 0.0
        return LinkFacts(peer, min(trips, default=0.0), rate, least, self._together.value or 0.0)

    def _since(self, key: int, now: Moved | None) -> Moved:
        """Since the last step; a connection that was opened meanwhile counts from zero."""
        before = self._before.get(key, (0.0, 0.0))
        if now is None:
            return 0.0, 0.0
        return now if now[0] < before[0] else (now[0] - before[0], now[1] - before[1])

    def _note(self, rank: int, link: LinkView, floor: float) -> None:
        peer = self._peers.setdefault(rank, _Peer())
        if link.rtprop:
            peer.rtprop = min(peer.rtprop or link.rtprop, link.rtprop)
        peer.floor = max(peer.floor, floor)


def _rates(link: LinkView, since: Moved) -> tuple[float, float]:
    """The rate that the path carried in a step, 0 where it was not the limit, and what it carries at least."""
    nbytes, busy = since
    trip = link.rtprop or 0.0
    floor = max(link.floor, least_rate(nbytes, busy, trip) if nbytes >= LEAST_BYTES and busy > 0 else 0.0)
    if link.bandwidth:
        return link.bandwidth, max(floor, link.bandwidth)
    queue = link.queueing > QUEUE_SHARE * trip + QUEUE_SECONDS
    if nbytes < LEAST_BYTES or busy <= TRIPS * trip or not queue:
        return 0.0, floor
    return nbytes / (busy - trip), floor


def least_rate(nbytes: float, busy: float, trip: float) -> float:
    """What a path carries at least that moved so many bytes in `busy` seconds. In one round trip of them at least
    nothing was sent: the last bytes were on their way. No more than half of the time is taken off, because short times
    are not exact."""
    return nbytes / max(busy - trip, busy / 2)


def _carried(since: Moved) -> float:
    """Bytes per second while data was in flight; 0 for transfers that are too small to tell."""
    nbytes, busy = since
    return nbytes / busy if nbytes >= LEAST_BYTES and busy > 0 else 0.0
