"""Scout: what this member's own links showed since the last report.

In: the wire's view of each peer (from its acknowledgements, on the sender's clock) and the bytes that were sent. Out:
Observations. A link counts as measured when it carried enough; what it carried is known from the frame_io, so nothing is
timed a second time. A slow link takes several looks for that, so what it carries while it is busy is counted together.
A link that stood idle for most of the time was not asked what it can carry, and its estimate is no evidence that it
became slower.
"""

from __future__ import annotations

from collections import Counter

from gradwire.plan.membership.awareness import LEAST_BYTES, LinkObservation
from gradwire.tree.frame_io import FrameIO

# A link was busy when it carried this share of what it is taken to carry.
BUSY = 0.5
# Seconds under way that are counted together at most: what is busy and carried less is slower than 35 kbit/s, or only
# said small things that took a round trip each.
LONGEST = 60.0


class LinkMonitor:
    """Turns the wire's estimates into reports."""

    def __init__(self, rank: int, frame_io: FrameIO) -> None:
        self._rank, self._frame_io = rank, frame_io
        self._reported_bytes: Counter[int] = Counter()
        self._open: dict[int, tuple[int, float]] = {}
        self._busy: dict[int, float] = {}
        self._looked: float | None = None

    def observe(self, now: float) -> tuple[LinkObservation, ...]:
        """One observation per peer whose link carried enough, or little; `at` is 0 here, the moment of the report."""
        found = []
        since = now - self._looked if self._looked is not None else 0.0
        self._looked = now
        for peer, total in self._frame_io.sent_bytes.items():
            fresh = total - self._reported_bytes[peer]
            if not fresh:
                continue
            self._reported_bytes[peer] = total
            view = self._frame_io.wire.view(peer)
            if view.bandwidth is None:
                continue
            carried, took = self._open.pop(peer, (0, 0.0))
            carried, took = carried + fresh, took + since
            busy = carried >= BUSY * view.bandwidth * took
            if busy:
                self._busy[peer] = now
            if busy and carried < LEAST_BYTES and took < LONGEST:
                self._open[peer] = carried, took
            else:
                found.append(LinkObservation(self._rank, peer, view.bandwidth, view.rtprop, carried, 0.0, busy))
        return tuple(found)

    def idle(self, peer: int, now: float, within: float) -> bool:
        """Whether this link was not busy lately; a message now and then does not make it so."""
        return now - self._busy.get(peer, float("-inf")) > within
