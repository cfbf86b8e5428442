"""Scout: what this member's own links showed since the last report.

In: the wire's view of each peer (from its acknowledgements, on the sender's clock) and the bytes that were sent. Out:
Observations. A link counts as measured when it carried enough; what it carried is known from the port, so nothing is
timed a second time. A link that stood idle for most of the time was not asked what it can carry, and its estimate is no
evidence that it became slower.
"""

from __future__ import annotations

from collections import Counter

from gradwire.aggregate.port import Port
from gradwire.plan.awareness import Observation

# A link was busy when it carried this share of what it is taken to carry.
BUSY = 0.5


class Scout:
    """Turns the wire's estimates into reports."""

    def __init__(self, rank: int, port: Port) -> None:
        self._rank, self._port = rank, port
        self._told: Counter[int] = Counter()
        self._busy: dict[int, float] = {}
        self._looked: float | None = None

    def look(self, now: float) -> tuple[Observation, ...]:
        """One observation per peer that got anything since the last look; `at` is 0 here, the moment of the report."""
        found = []
        since = now - self._looked if self._looked is not None else 0.0
        self._looked = now
        for peer, total in self._port.sent_bytes.items():
            fresh = total - self._told[peer]
            if not fresh:
                continue
            self._told[peer] = total
            self._busy[peer] = now
            view = self._port.wire.view(peer)
            if view.bandwidth is not None:
                busy = fresh >= BUSY * view.bandwidth * since
                found.append(Observation(self._rank, peer, view.bandwidth, view.rtprop, fresh, 0.0, busy))
        return tuple(found)

    def idle(self, peer: int, now: float, within: float) -> bool:
        """Whether nothing went to this peer lately."""
        return now - self._busy.get(peer, float("-inf")) > within
