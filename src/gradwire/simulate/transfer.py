"""Transfer: how long operations between all ranks take on a network, over kernel TCP or LTP, in virtual time.

In: the lab's Network. Out: when an operation that starts at a time has ended on every rank. A flow sends in rounds of
its congestion window:

    share    what its links give it: each link's present rate, divided by the flows that cross it
    round    the window, in the longer of a round trip and its bytes at that share
    window   doubles up to the threshold, then grows as CUBIC does; x 0.7 after a loss, by chance or by a full queue
    idle     after an idle time of more than a retransmission timeout the window is halved for each of them, down to 10
             packets (tcp_slow_start_after_idle)

LTP paces at the measured rate, so it has no window and keeps its rate while idle. Over a foreign process group (gloo)
a receiver first reports to the sender that it is ready, which costs half a round trip for each operation.

Operations that overlap are served in the order in which they start. A scheduled change of delay, loss or queue counts
from the next operation on, a change of rate at once. Jitter and reordering are not modelled. Cross traffic takes its
share of a link for as long as it runs.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gradwire.errors import ConfigError
from gradwire.network import Network
from gradwire.network.route import routes
from gradwire.sense.peer_links import least_rate
from gradwire.simulate.link_times import LinkTimes, crossing_flows, loss_events
from gradwire.types import FLAT_TRANSPORTS, LinkFacts, TransportKind

Pair = tuple[int, int]

# Linux: initial window in packets, minimum retransmission timeout in seconds, CUBIC's decrease and growth.
INITIAL_WINDOW: Final = 10.0
LEAST_RTO: Final = 0.2
DECREASE: Final = 0.7
GROWTH: Final = 0.4
# What LTP's headers, acknowledgements and pacing leave of a link (docs/results/ltp.md).
LTP_SHARE: Final = 0.97
# Seconds after which the rate is read again: by a flow that gets none (a gap of a trace), and by LTP while it sends.
STALLED: Final = 0.05
# Packets that must follow a lost one for three duplicate acknowledgements; with fewer, a tail loss probe follows after
# two round trips and the longest delay of an acknowledgement.
FAST_RETRANSMIT: Final = 4
DELAYED_ACK: Final = 0.04
# A burst that lasts so many round trips fills its path: acknowledgements show the path's rate (sense/peer_links.py).
FILLS: Final = 1.0


@dataclass(slots=True)
class Flow:
    """The sender's state of one connection, or of several alike; windows in packets."""

    path: tuple[int, ...]
    back: tuple[int, ...]
    round_trip: float = 0.0
    loss: float = 0.0
    # Bursts of losses per packet: as many as losses, where each is a burst of its own.
    events: float = 0.0
    queue: float = 0.0
    window: float = INITIAL_WINDOW
    threshold: float = math.inf
    before_loss: float = 0.0
    lost_at: float = 0.0
    idle_since: float = -math.inf
    # Of the last transfer: bytes per second that reached the peer, whether the sender ran out of data before a full
    # round, and packets sent again.
    delivered: float = 0.0
    app_limited: bool = True
    sent_again: int = 0
    # Since the last report: most bytes per second of a transfer, what the path carries at least, and what one carried
    # that the path and not the window limited.
    carried: float = 0.0
    least: float = 0.0
    filled: float = 0.0

    def carry(self, nbytes: int, seconds: float) -> None:
        """A transfer whose bytes were sent in so many seconds, and acknowledged a round trip later."""
        busy = seconds + self.round_trip
        self.carried = max(self.carried, nbytes / busy)
        self.least = max(self.least, least_rate(nbytes, busy, self.round_trip))


class NetworkTimes:
    """Times of operations on one network; keeps the state of every connection. Times must not decrease."""

    def __init__(
        self, network: Network, wire: TransportKind = "group", *, restarts: bool = True, seed: int = 1
    ) -> None:
        if wire not in FLAT_TRANSPORTS:
            raise ConfigError(f"transport: {wire!r} cannot be simulated; choose one of {', '.join(FLAT_TRANSPORTS)}")
        self._network, self._wire, self._restarts = network, wire, restarts
        self._rng = random.Random(seed)
        self._free = 0.0
        names = [host.name for host in network.ranks]
        paths = routes(network)
        self._links = [LinkTimes.of(network, paths, index) for index in range(len(network.links))]
        self._pairs: list[Pair] = [(a, b) for a in range(len(names)) for b in range(len(names)) if a != b]
        path_of = self._paths = {(a, b): paths[names[a], names[b]] for a, b in self._pairs}
        self._crossing_all = crossing_flows(path_of.values())
        self.flows: dict[Pair, Flow] = {}
        shared: dict[object, Flow] = {}
        for a, b in self._pairs:
            there, back = path_of[a, b], path_of[b, a]
            flow = Flow(there, back)
            self._update_path(flow, 0.0)
            # Connections without random loss over equal links are always in the same state: one Flow serves them all.
            alike = (tuple((self._links[i].specs, self._crossing_all[i]) for i in there), flow.round_trip)
            lossless = all(self._links[i].lossless for i in there)
            self.flows[a, b] = shared.setdefault(alike, flow) if lossless else flow
        self._changing = any(len(link.specs) > 1 for link in self._links)

    def _update_path(self, flow: Flow, now: float) -> None:
        """What the flow's links are like at this time."""
        specs = [self._links[index].spec_at(now) for index in flow.path]
        back = [self._links[index].spec_at(now) for index in flow.back]
        flow.round_trip = max(sum(float(spec.delay) for spec in (*specs, *back)), 1e-5)
        flow.loss = 1 - math.prod(1 - spec.mean_loss for spec in specs)
        flow.events = sum(loss_events(spec) for spec in specs)
        flow.queue = min(spec.queue_bytes for spec in specs)

    @property
    def world_size(self) -> int:
        return len(self._network.ranks)

    @property
    def round_trip(self) -> float:
        """Of the farthest pair, with empty queues."""
        return max(flow.round_trip for flow in self.flows.values())

    @property
    def latency(self) -> float:
        """Seconds of a direct operation without bytes, between the farthest pair with empty queues."""
        return (0.5 + self._handshake) * self.round_trip

    @property
    def _handshake(self) -> float:
        """Round trips before an operation's data are sent."""
        return 0.5 if self._wire == "group" else 0.0

    def operate(self, kind: str, start: float, nbytes: int) -> float:
        """An operation of an exchange: "ring", or one between all ranks; `nbytes` from each rank to each other."""
        return self.ring(start, nbytes) if kind == "ring" else self.direct(start, nbytes)

    def sent_by_rank(self, kind: str, nbytes: int) -> int:
        """Bytes that each rank sends in that operation."""
        others = self.world_size - 1
        return nbytes * (2 * others if kind == "ring" else others)

    def report_links(self) -> dict[Pair, LinkFacts]:
        """What ranks learned of their links since the last report."""
        most = [0.0] * self.world_size
        for (source, _), flow in self.flows.items():
            most[source] += flow.filled or flow.carried
        found = {
            (a, b): LinkFacts(b, flow.round_trip, flow.filled, flow.filled or flow.least, most[a])
            for (a, b), flow in self.flows.items()
            if flow.carried
        }
        for flow in self.flows.values():
            flow.filled = flow.carried = flow.least = 0.0
        return found

    def direct(self, start: float, nbytes: int) -> float:
        """Every rank sends `nbytes` to every other rank; when the last byte has arrived."""
        return self._serve(start, self._pairs, nbytes, self._crossing_all, self._handshake)

    def ring(self, start: float, nbytes: int) -> float:
        """The process group's all-reduce: 2 (W - 1) rounds, in each of which every rank sends `nbytes` to the next."""
        world = self.world_size
        pairs = [(rank, (rank + 1) % world) for rank in range(world)]
        crossing = crossing_flows(self._paths[pair] for pair in pairs)
        now = start
        for _ in range(2 * (world - 1)):
            now = self._serve(now, pairs, nbytes, crossing, 0.0)
        return now

    def saturating_rate(self, now: float = 0.0, seconds: float = 5.0) -> float:
        """Bytes per second that a rank sends when all ranks send to all others without end: what a transfer of this
        wire that lasts some seconds gets, on connections of its own."""
        others = NetworkTimes(self._network, self._wire, restarts=self._restarts, seed=self._rng.randrange(1 << 30))
        each = max(1, int(others._fair_share(now) * seconds))
        warm = others.direct(now, each)
        return each * (self.world_size - 1) / (others.direct(warm, each) - warm)

    def _fair_share(self, now: float) -> float:
        return min(self._share(flow, self._crossing_all, now) for flow in self.flows.values())

    def _serve(
        self, start: float, pairs: Sequence[Pair], nbytes: int, crossing: Counter[int], handshake: float
    ) -> float:
        if nbytes <= 0:
            return start
        begin, left, arrived = max(start, self._free), start, start
        for pair in {id(self.flows[pair]): pair for pair in pairs}.values():
            flow = self.flows[pair]
            if not all(crossing[index] for index in flow.path):
                flow.path = self._paths[pair]  # the pair that it was made for, which is alike, sends nothing now
            if self._changing:
                self._update_path(flow, begin)
            sent = self._send(flow, max(begin, start + handshake * flow.round_trip), nbytes, crossing)
            left, arrived = max(left, sent), max(arrived, sent + flow.round_trip / 2)
        self._free = left
        return arrived

    def _share(self, flow: Flow, crossing: Counter[int], now: float) -> float:
        """Bytes of payload per second for this flow."""
        return min(self._links[index].payload_rate(now, crossing[index]) for index in flow.path)

    def _send(self, flow: Flow, start: float, nbytes: int, crossing: Counter[int]) -> float:
        """When the last byte has left; updates the flow."""
        if self._wire == "ltp":
            return self._paced(flow, start, nbytes, crossing)
        self._restart(flow, start)
        packet = self._links[flow.path[0]].payload
        left, now = math.ceil(nbytes / packet), start
        flow.delivered, flow.app_limited, flow.sent_again = 0.0, True, 0
        while left > 0:
            share = self._share(flow, crossing, now)
            if share <= 0:
                now += STALLED
                continue
            burst = min(left, max(1, int(flow.window)))
            lasts = burst * packet / share
            lost = self._lost(flow, burst)
            full = burst < left
            if lasts >= FILLS * flow.round_trip:
                flow.filled = max(flow.filled, share)
            now += max(lasts, flow.round_trip) if full else lasts
            if full:
                flow.delivered = max(flow.delivered, burst * packet / max(lasts, flow.round_trip))
                flow.app_limited = False
            left -= burst - lost
            flow.sent_again += lost
            self._adjust(flow, burst, lost, share * flow.round_trip / packet, now, packet)
            if lost and not full:
                # The last round: what was lost is sent again after duplicate acknowledgements, or after a probe.
                now += flow.round_trip if burst - lost >= FAST_RETRANSMIT else 2 * flow.round_trip + DELAYED_ACK
        flow.idle_since = now
        flow.carry(nbytes, now - start)
        return now

    def _paced(self, flow: Flow, start: float, nbytes: int, crossing: Counter[int]) -> float:
        now, left = start, nbytes / (1 - flow.loss)
        flow.delivered, flow.app_limited = 0.0, nbytes < 2 * self._share(flow, crossing, start) * flow.round_trip
        while left > 0:
            share = LTP_SHARE * self._share(flow, crossing, now)
            if share <= 0:
                now += STALLED
                continue
            flow.delivered = share
            if left <= share * STALLED:
                now, left = now + left / share, 0.0
            else:
                now, left = now + STALLED, left - share * STALLED
        flow.idle_since = now
        flow.carry(nbytes, now - start)
        if not flow.app_limited:
            flow.filled = max(flow.filled, flow.delivered)
        return now

    def _restart(self, flow: Flow, now: float) -> None:
        timeout = max(LEAST_RTO, 2 * flow.round_trip)
        idle = now - flow.idle_since
        if self._restarts and idle > timeout and flow.window > INITIAL_WINDOW:
            flow.threshold = max(flow.threshold, 0.75 * flow.window) if flow.threshold < math.inf else flow.window
            flow.window = max(INITIAL_WINDOW, flow.window * 0.5 ** min(idle / timeout, 30.0))
            flow.lost_at = now

    def _lost(self, flow: Flow, packets: int) -> int:
        """Packets of a round that are lost: losses come in bursts, each of which costs the window once."""
        if flow.loss == 0:
            return 0
        events = sum(self._rng.random() < flow.events for _ in range(packets))
        return min(packets, round(events * flow.loss / flow.events))

    @staticmethod
    def _adjust(flow: Flow, burst: int, lost: int, bdp: float, now: float, packet: float) -> None:
        """The window after a round."""
        holds = bdp + flow.queue / packet
        if lost or flow.window > holds:
            flow.before_loss, flow.lost_at = min(flow.window, holds), now
            flow.window = flow.threshold = max(2.0, DECREASE * min(flow.window, holds))
        elif burst < int(flow.window):
            return  # the window was not used: it does not grow
        elif flow.window < flow.threshold:
            flow.window = min(2 * flow.window, max(flow.threshold, flow.window))
        else:
            origin = (flow.before_loss * (1 - DECREASE) / GROWTH) ** (1 / 3)
            cubic = GROWTH * (now - flow.lost_at - origin) ** 3 + flow.before_loss
            # Where CUBIC would be slower than Reno, it grows as Reno does: half a packet each round.
            flow.window = max(flow.window + 0.53, min(cubic, 1.5 * flow.window))
