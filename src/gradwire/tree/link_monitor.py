"""Link monitor: turns the wire's estimates of this member's own links into observations.

In: the wire's view of each peer (from its acknowledgements, on the sender's clock) and the bytes that were sent. Out:
LinkObservations. A link counts as measured when it carried enough bytes. A slow link needs several calls for that, so
its bytes add up while it is busy. A link that was idle most of the time is reported with `busy` false: its estimate is
no evidence that it became slower.
"""

from __future__ import annotations

from collections import Counter

from gradwire.plan.membership.link_estimates import LEAST_BYTES, LinkObservation
from gradwire.tree.frame_io import FrameIO

# A link was busy when it carried at least this fraction of its estimated rate.
BUSY = 0.5
# Longest time (seconds) over which bytes add up: a busy link that carried less than LEAST_BYTES in it has an estimated
# rate below 70 kbit/s (LEAST_BYTES / BUSY in this time), or carried only small messages that took a round trip each.
MAX_SECONDS = 60.0


class LinkMonitor:
    """Observes the links from one member to its peers."""

    def __init__(self, rank: int, frame_io: FrameIO) -> None:
        self._rank, self._frame_io = rank, frame_io
        self._reported_bytes: Counter[int] = Counter()
        self._open: dict[int, tuple[int, float]] = {}
        self._busy: dict[int, float] = {}
        self._observed_at: float | None = None

    def observe(self, now: float) -> tuple[LinkObservation, ...]:
        """One observation per peer that was sent anything; `at` is 0, the time of the report."""
        found = []
        since = now - self._observed_at if self._observed_at is not None else 0.0
        self._observed_at = now
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
            if busy and carried < LEAST_BYTES and took < MAX_SECONDS:
                self._open[peer] = carried, took
            else:
                found.append(LinkObservation(self._rank, peer, view.bandwidth, view.rtprop, carried, 0.0, busy))
        return tuple(found)

    def idle(self, peer: int, now: float, within: float) -> bool:
        """Whether this link was not busy for `within` seconds; occasional messages do not make it busy."""
        return now - self._busy.get(peer, float("-inf")) > within
