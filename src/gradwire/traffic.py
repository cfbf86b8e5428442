"""Traffic: tells, once a second, what came over which link and what the links are like.

In: the ledgers and estimates of the wires that a session uses, and round trips from pulses where there are any. Out:
Transferred and LinksSensed. Nothing is measured here; a look costs some microseconds a peer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gradwire.clock import Clock
from gradwire.events import Link, LinksSensed, Sink, Transferred
from gradwire.transport.ledger import Account, Ledger

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
    again: dict[int, int] = field(default_factory=dict)

    def rank_of(self, peer: int) -> int:
        return peer if self.ranks is None or peer < 0 else self.ranks[peer]

    def accounts(self) -> dict[int, Account]:
        return {self.rank_of(peer): account for peer, account in self.ledger.read().items()}

    def links(self) -> dict[int, Mapping[str, float]]:
        return {self.rank_of(peer): link for peer, link in self.stats().items()}

    def sent_again(self, links: Mapping[int, Mapping[str, float]]) -> dict[int, int]:
        """Bytes sent again since the last call."""
        found = {}
        for rank, link in links.items():
            total = int(link["retransmitted_bytes"])
            found[rank], self.again[rank] = total - self.again.get(rank, 0), total
        return found


class Traffic:
    """One per session; called by the training thread, at a step's first bucket and at the end."""

    def __init__(self, rank: int, sink: Sink, clock: Clock, sources: Sequence[Source] = ()) -> None:
        self._rank, self._sink, self._clock = rank, sink, clock
        self._sources = list(sources)
        self._told = clock.now()

    def tell(self, step: int, trips: Callable[[], Trips] = dict, *, last: bool = False) -> None:
        """`step` is the one that has just ended. Told once a second, and when it is the last."""
        now = self._clock.now()
        if now - self._told < EVERY and not last:
            return
        self._told = now
        accounts: dict[int, Account] = {}
        again: dict[int, int] = {}
        links: dict[int, Mapping[str, float]] = {}
        for source in self._sources:
            for rank, account in source.accounts().items():
                accounts.setdefault(rank, Account()).add(account)
            seen = source.links()
            for rank, count in source.sent_again(seen).items():
                again[rank] = again.get(rank, 0) + count
            for rank, link in seen.items():
                # Of two wires to a peer, the one that carries more knows more.
                if rank not in links or link["bytes_sent"] > links[rank]["bytes_sent"]:
                    links[rank] = link
        for rank in sorted(accounts.keys() | {rank for rank, count in again.items() if count}):
            self._sink.emit(_transferred(now, step, rank, accounts.get(rank, Account()), again.get(rank, 0)))
        told = self._links(links, trips())
        if told:
            self._sink.emit(LinksSensed(now, step, told))

    def _links(self, links: Mapping[int, Mapping[str, float]], trips: Trips) -> tuple[Link, ...]:
        peers = sorted(links.keys() | {peer for peer, (trip, _) in trips.items() if trip is not None})
        return tuple(
            _link(self._rank, peer, links[peer]) if peer in links else Link(self._rank, peer, None, *trips[peer])
            for peer in peers
        )


def _transferred(at: float, step: int, peer: int, account: Account, again: int) -> Transferred:
    sums = (account.transfers, account.nbytes, account.missing, account.returned, account.seconds)
    return Transferred(at, step, peer, *sums, account.closes, again)


def _link(source: int, destination: int, stats: Mapping[str, float]) -> Link:
    """A wire's estimate as an event tells it; 0 is what the wire says where it knows nothing."""
    trip, least = stats["srtt"] or None, stats["rtprop"] or None
    queueing = max(0.0, trip - least) if trip is not None and least is not None else None
    known = (stats["bottleneck"] or None, trip, least, stats["loss"], queueing, int(stats["window"]) or None)
    return Link(source, destination, *known)
