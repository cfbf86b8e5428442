"""Traffic: reports once a second what was received over each link, and the estimates of the links.

In: the ledgers and estimates of the wires that a session uses, and round trips from pulses where there are any. Out:
Transferred and LinksSensed events. Nothing is measured here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gradwire.clock import Clock
from gradwire.events import LinkSample, LinksSensed, Sink, Transferred
from gradwire.transport.wires.ledger import Account, Ledger

log = logging.getLogger("gradwire")

# Seconds between two reports.
EVERY: Final = 1.0
Stats = Mapping[int, Mapping[str, float]]
# A peer's last round trip and the shortest known.
Trips = Mapping[int, tuple[float | None, float | None]]


@dataclass(slots=True)
class Source:
    """One wire: its ledger, its estimates and counters, and which of the job's ranks its peers are."""

    ledger: Ledger
    stats: Callable[[], Stats] = dict
    ranks: Sequence[int] | None = None
    retransmitted: dict[int, int] = field(default_factory=dict)

    def rank_of(self, peer: int) -> int:
        return peer if self.ranks is None or peer < 0 else self.ranks[peer]

    def accounts(self) -> dict[int, Account]:
        return {self.rank_of(peer): account for peer, account in self.ledger.read().items()}

    def links(self) -> dict[int, Mapping[str, float]]:
        return {self.rank_of(peer): link for peer, link in self.stats().items()}

    def newly_retransmitted(self, links: Mapping[int, Mapping[str, float]]) -> dict[int, int]:
        """Bytes retransmitted since the last call, by rank."""
        found = {}
        for rank, link in links.items():
            total = int(link["retransmitted_bytes"])
            before = self.retransmitted.get(rank, 0)
            # A connection that was opened again counts from zero.
            found[rank], self.retransmitted[rank] = total - before if total >= before else total, total
        return found


class Traffic:
    """One per session. Reports from a thread of its own: reading a wire's counters waits for the wire's thread, which
    training must not do."""

    def __init__(self, rank: int, sink: Sink, clock: Clock, sources: Sequence[Source] = ()) -> None:
        self._rank, self._sink, self._clock = rank, sink, clock
        self._sources = list(sources)
        self._step = self._reported = -1
        self._trips: Callable[[], Trips] = dict
        # The last known estimates of each link and their time: at the end some peers have left already.
        self._known: dict[int, tuple[float, Mapping[str, float]]] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def add(self, source: Source) -> None:
        """Report this wire too, from now on."""
        self._sources = [*self._sources, source]

    def remove(self, source: Source) -> None:
        """Report this wire a last time: it is about to be closed."""
        if not self._stop.is_set():
            self.report()
        self._sources = [one for one in self._sources if one is not source]

    def start(self) -> None:
        """Report once a second from now on, as long as there are new steps."""
        self._thread = threading.Thread(target=self._run, name="gradwire-traffic", daemon=True)
        self._thread.start()

    def step_ended(self, step: int, trips: Callable[[], Trips] = dict) -> None:
        """A step is over. Called by the training thread; only notes the number."""
        self._step, self._trips = step, trips

    def finish(self, step: int, trips: Callable[[], Trips] = dict) -> None:
        """The last step is over: stop the thread, report the rest."""
        self.stop()
        self.step_ended(step, trips)
        self.report()

    def stop(self) -> None:
        """End the thread without a report."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10.0)

    def _run(self) -> None:
        while not self._stop.wait(EVERY):
            try:
                if self._step != self._reported:
                    self.report()
            except Exception:  # the top of this thread: training does not need it
                log.exception("the traffic of the last second could not be reported")

    def report(self) -> None:
        with self._lock:
            self._report()

    def _report(self) -> None:
        now, step = self._clock.now(), self._step
        self._reported = step
        accounts: dict[int, Account] = {}
        retransmitted: dict[int, int] = {}
        links: dict[int, Mapping[str, float]] = {}
        for source in self._sources:
            for rank, account in source.accounts().items():
                accounts.setdefault(rank, Account()).add(account)
            seen = source.links()
            for rank, count in source.newly_retransmitted(seen).items():
                retransmitted[rank] = retransmitted.get(rank, 0) + count
            for rank, link in seen.items():
                # Of two wires to a peer, the one that sends more has the better estimates.
                if rank not in links or link["bytes_sent"] > links[rank]["bytes_sent"]:
                    links[rank] = link
        for rank in sorted(accounts.keys() | {rank for rank, count in retransmitted.items() if count}):
            self._sink.emit(_transferred(now, step, rank, accounts.get(rank, Account()), retransmitted.get(rank, 0)))
        self._known.update({rank: (now, link) for rank, link in links.items()})
        samples = self._links(now, self._trips())
        if samples:
            self._sink.emit(LinksSensed(now, step, samples))

    def _links(self, now: float, trips: Trips) -> tuple[LinkSample, ...]:
        """The wires' estimates of each link; of links without any, the round trips of pulses."""
        samples = {
            peer: LinkSample(self._rank, peer, None, *trip) for peer, trip in trips.items() if trip[0] is not None
        }
        samples |= {peer: _link(self._rank, peer, link, now - at) for peer, (at, link) in self._known.items()}
        return tuple(samples[peer] for peer in sorted(samples))


def _transferred(at: float, step: int, peer: int, account: Account, retransmitted: int) -> Transferred:
    sums = (account.transfers, account.nbytes, account.missing, account.returned, account.seconds)
    return Transferred(at, step, peer, *sums, account.closes, retransmitted)


def _link(source: int, destination: int, stats: Mapping[str, float], age: float) -> LinkSample:
    """A wire's estimates in the form of an event. Wires report 0 for an unknown value."""
    trip, least = stats["srtt"] or None, stats["rtprop"] or None
    queueing = max(0.0, trip - least) if trip is not None and least is not None else None
    known = (stats["bottleneck"] or None, trip, least, stats["loss"], queueing, int(stats["window"]) or None)
    return LinkSample(source, destination, *known, age)
