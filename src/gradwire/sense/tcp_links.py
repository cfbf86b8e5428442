"""TCP links: the kernel's TCP_INFO as acknowledgements, in the form that `AckMeter` takes from any transport.

A delivery rate is the path's only where the path was the limit. The kernel marks samples of a sender that had no more
to send. A transfer of a few windows is limited by the window, and so is one whose window still grows towards its
threshold, unless a queue shows that the path was full, or the receiver's window or the send buffer is what limits every
transfer here. What the path did not limit is a lower bound. Old samples are not repeated: the kernel keeps the last
rate while nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gradwire.sense.filters import Ewma
from gradwire.sense.slow_start import slow_start_seconds, window_after_idle
from gradwire.sense.tcp_info import TcpInfo
from gradwire.types import LinkView

# A round trip this much above the least is a queue: more than the scheduling of two hosts and delayed ACKs explain.
QUEUE_FACTOR: Final = 1.25
QUEUE_SECONDS: Final = 0.002
# Windows that a step must send over a connection before its rate is the path's. Less may have been sent in bursts of a
# window each.
WINDOWS: Final = 3.0
# The share of the busy time in which windows or buffers were the limit, from which on they are what limits transfers.
WINDOW_LIMITED: Final = 0.5
# Loss is smoothed over some steps; a step's own share is coarse.
LOSS_GAIN: Final = 1 / 8


@dataclass(slots=True)
class _Connection:
    """One connection at the last reading, its smoothed loss, and its last rate that the path limited."""

    info: TcpInfo
    loss: Ewma = field(default_factory=lambda: Ewma(LOSS_GAIN))
    rate: float = 0.0


@dataclass(slots=True)
class TcpLinks:
    """`read` gives all connections by number. Call `links` once per step, then `moved`."""

    read: Callable[[], dict[int, TcpInfo]]
    # net.ipv4.tcp_slow_start_after_idle of this host.
    restarts: bool = True
    _connections: dict[int, _Connection] = field(default_factory=dict)

    def links(self) -> dict[int, LinkView]:
        """Every connection since the last call; `bandwidth` only where the path limited what was sent since."""
        now, before = self.read(), self._connections
        self._connections = {key: _Connection(info) for key, info in now.items()}
        return {key: self._link(self._connections[key], before.get(key)) for key in now}

    def moved(self) -> dict[int, tuple[float, float]]:
        """Per connection: bytes acknowledged, and the time with data in flight, as of the last call of `links`."""
        return {key: (float(one.info.acked), one.info.busy) for key, one in self._connections.items()}

    def _link(self, one: _Connection, before: _Connection | None) -> LinkView:
        info, rate = one.info, None
        if before is not None:
            one.loss, one.rate = before.loss, before.rate
            rate = path_rate(info, before.info)
            if info.sent > before.info.sent:
                one.loss.add(max(0, info.resent - before.info.resent) / (info.sent - before.info.sent))
        one.rate = rate or one.rate
        moved = before is not None and info.acked > before.info.acked
        return LinkView(
            rtprop=info.min_rtt or None,
            bandwidth=rate,
            queueing=max(0.0, info.rtt - info.min_rtt) if moved else 0.0,
            loss=one.loss.value or 0.0,
            confidence=1.0 if rate else 0.5,
            floor=info.delivery_rate,
            restart=self._restart(info, one.rate or info.delivery_rate),
        )

    def _restart(self, info: TcpInfo, rate: float) -> float:
        """What the pause before this reading costs a transfer of the path's bandwidth-delay product. BBR keeps its
        window."""
        if not self.restarts or info.bbr or rate <= 0:
            return 0.0
        window = window_after_idle(info.window, info.idle, info.timeout, 10.0 * info.mss)
        return slow_start_seconds(rate * info.min_rtt, info.min_rtt, rate, window) if window < info.window else 0.0


def path_rate(info: TcpInfo, before: TcpInfo) -> float | None:
    """The rate that the path carried between two readings; None where the sender or its window was the limit."""
    fresh = info.acked > before.acked and info.delivery_rate != before.delivery_rate
    if not fresh or info.app_limited or info.delivery_rate <= 0:
        return None
    if info.acked - before.acked < WINDOWS * info.window:
        return None
    queue = info.rtt > QUEUE_FACTOR * info.min_rtt + QUEUE_SECONDS
    limited = info.window_limited - before.window_limited >= WINDOW_LIMITED * (info.busy - before.busy) > 0
    if info.slow_start and not queue and not limited:
        return None
    return info.bbr_rate or info.delivery_rate
