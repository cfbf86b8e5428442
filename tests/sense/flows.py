"""A model of kernel TCP for tests of sensing: one connection in rounds of its window, as TCP_INFO would describe it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from gradwire.sense.tcp_info import TcpInfo

MSS = 1448
TIMEOUT = 0.2


@dataclass
class Flow:
    """`rate` is its share of the path in bytes per second, `loss` the chance of a packet to be lost. The path's queue
    holds `queue` bytes. Windows in packets."""

    rate: float
    rtt: float
    loss: float
    queue: float
    rng: random.Random
    window: float = 10.0
    threshold: float = float("inf")
    info: TcpInfo = field(init=False)
    ended: float = -1e9

    def __post_init__(self) -> None:
        self.info = TcpInfo(self.rtt, self.rtt, TIMEOUT + self.rtt, MSS, 10 * MSS, float("inf"), 0.0)

    def send(self, nbytes: int, now: float) -> float:
        """Seconds until all of it is acknowledged, from `now` on."""
        idle = now - self.ended
        if idle > TIMEOUT + self.rtt:
            self.threshold = max(self.threshold, 0.75 * self.window)
            self.window = max(min(self.window, 10.0), self.window / 2.0 ** min(60, int(idle / (TIMEOUT + self.rtt))))
        left, took, rate, limited, lost_bytes, trip = float(nbytes), 0.0, self.info.delivery_rate, True, 0, self.rtt
        while left > 0:
            flight = min(left, self.window * MSS)
            left -= flight
            # The last flight is waited for; before, the next one follows as acknowledgements arrive.
            trip = max(self.rtt, flight / self.rate) if left > 0 else self.rtt + flight / self.rate
            took += trip
            # The first flight after idle and one that ends the data are the sender's own limit.
            if took > trip and left > 0:
                rate, limited = flight / trip, False
            elif limited:
                rate = max(rate, flight / trip)
            packets = max(1, int(flight / MSS))
            lost = self.rng.random() > (1 - self.loss) ** packets
            if lost or flight > self.rate * self.rtt + self.queue:
                self.threshold = max(2.0, 0.7 * self.window)
                self.window = self.threshold
                lost_bytes += MSS
            elif flight >= self.window * MSS:
                # Past its threshold CUBIC's growth is faster than a packet a round trip.
                self.window = min(2 * self.window, max(self.threshold, self.window + 1, 1.05 * self.window))
        self.ended = now + took
        before = self.info
        self.info = TcpInfo(
            rtt=trip, min_rtt=self.rtt, timeout=TIMEOUT + self.rtt, mss=MSS, window=int(self.window * MSS),
            threshold=self.threshold * MSS, idle=0.0, delivery_rate=rate * self.rng.lognormvariate(0.0, 0.02),
            app_limited=limited, acked=before.acked + nbytes, sent=before.sent + nbytes + lost_bytes,
            resent=before.resent + lost_bytes, busy=before.busy + took,
        )  # fmt: skip
        return took


def saturating(rate: float, rtt: float, loss: float, queue: float, seed: int = 9) -> float:
    """Bytes per second of a transfer that is long enough for slow start not to matter."""
    flow = Flow(rate, rtt, loss, queue, random.Random(seed))
    flow.send(1_000_000, 0.0)
    nbytes = int(max(rate * 5, 3e6))
    return nbytes / flow.send(nbytes, flow.ended)
