"""Run data: what the dashboard shows of one run, in bounded memory.

`RunState` is shared by all views of gradwire. The dashboard needs more: series of each rank at any zoom, earlier plans,
transfers of each pair, settings of each rank. They are kept here, bounded by the constants below.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from gradwire.dashboard.sampled_series import SampledSeries
from gradwire.events import Attached, LinksSensed, Noted, OuterStepped, Planned, Sensed, Stepped, Transferred
from gradwire.observe.reader import Record
from gradwire.observe.state import RunState
from gradwire.observe.step_split import LONGEST
from gradwire.observe.transport_totals import TransportTotals

# Enough for 64 ranks with nine series each; further series are not kept.
MAX_SERIES: Final = 640
# Ranks from this number on count in totals, but are not shown in matrices.
MAX_MEMBERS: Final = 256
MAX_PLANS: Final = 64
MAX_CLOSES: Final = 16
# No measured value is larger; sums of larger ones could overflow.
LARGEST: Final = 1e18

UNITS: Final = {
    "bandwidth": "B/s",
    "rtprop": "s",
    "queueing": "s",
    "loss": "share",
    "predicted_plain": "s",
    "seconds": "s",
    "compute": "s",
    "encode": "s",
    "wire": "s",
    "wait": "s",
    "sent": "share",
    "residual": "share",
    "missing": "share",
    "training_loss": "",
    "accuracy": "share",
    "alignment": "",
    "own_norm": "",
    "norm": "",
    "outer_norm": "",
    "waited": "s",
}


@dataclass(slots=True)
class PairTotals(TransportTotals):
    """All transfers from one rank to another. The receiver reports what arrived, the sender what it resent."""

    most_closes: int = MAX_CLOSES
    seconds: float = 0.0
    recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=64))

    def add_received_at(self, at: float, event: Transferred) -> None:
        self.add_received(event)
        self.seconds += max(0.0, min(event.seconds, LONGEST))
        self.recent.append((at, event.nbytes))

    def load(self) -> float | None:
        """Bytes per second over the last transfers; None until there were two at different times."""
        if len(self.recent) < 2:
            return None
        span = self.recent[-1][0] - self.recent[0][0]
        return sum(nbytes for _, nbytes in list(self.recent)[1:]) / span if span > 0 else None


@dataclass(slots=True)
class RunData:
    """`take` adds one record; the views read the rest."""

    state: RunState = field(default_factory=RunState)
    series: dict[str, SampledSeries] = field(default_factory=dict)
    attached: dict[int, Attached] = field(default_factory=dict)
    plans: deque[tuple[float, Planned]] = field(default_factory=lambda: deque(maxlen=MAX_PLANS))
    sensed_links: dict[tuple[int, int], float] = field(default_factory=dict)
    pairs: dict[tuple[int, int], PairTotals] = field(default_factory=dict)
    noting_rank: int | None = None
    changed: int = 0
    impossible: int = 0

    def take(self, record: Record) -> None:
        """Add one record. A record with an impossible time is only counted."""
        started = self.state.started
        at = max(0.0, record.time - started) if started is not None else 0.0
        self.changed += 1
        if at > LONGEST:
            self.impossible += 1
            return
        self.state.take(record)
        if 0 <= record.rank < MAX_MEMBERS:
            self._keep(record.rank, at, record)

    def _keep(self, rank: int, at: float, record: Record) -> None:
        event = record.event
        match event:
            case Stepped():
                self._stepped(rank, at, event)
            case OuterStepped():
                self._outer_stepped(rank, at, event)
            case Sensed():
                for name in ("bandwidth", "rtprop", "queueing", "loss", "predicted_plain"):
                    self._put(name, at, getattr(event, name))
            case LinksSensed():
                for link in event.links:
                    self._link_sensed(link.source, link.destination, at - link.age)
            case Transferred():
                self._transferred(rank, at, event)
            case Planned():
                self._planned(at, event)
            case Noted():
                self._noted(rank, at, event)
            case Attached():
                self.attached[rank] = event

    def _put(self, name: str, at: float, value: float | None) -> None:
        if value is None or abs(value) > LARGEST:
            return
        series = self.series.get(name)
        if series is None:
            if len(self.series) >= MAX_SERIES:
                return
            series = self.series[name] = SampledSeries()
        series.append(at, value)

    def _stepped(self, rank: int, at: float, event: Stepped) -> None:
        for name in ("seconds", "compute", "encode", "wire", "wait", "residual"):
            self._put(f"{name}@{rank}", at, getattr(event, name))
        if event.plain_bytes:
            self._put(f"sent@{rank}", at, event.wire_bytes / event.plain_bytes)

    def _outer_stepped(self, rank: int, at: float, event: OuterStepped) -> None:
        """`alignment`, `norm` and `outer_norm` are the same on all ranks: the lowest rank's are kept."""
        for name in ("own_norm", "waited", *(("local_steps", "weight", "rank_wait") if event.sync_seconds else ())):
            self._put(f"{name}@{rank}", at, getattr(event, name))
        if event is self.state.rounds.last:
            for name in ("alignment", "norm", "outer_norm"):
                if self.state.rounds.count == 1:  # a lower rank than before
                    self.series.pop(name, None)
                self._put(name, at, getattr(event, name))

    def _link_sensed(self, source: int, destination: int, at: float) -> None:
        if 0 <= source < MAX_MEMBERS and 0 <= destination < MAX_MEMBERS:
            self.sensed_links[source, destination] = at

    def _transferred(self, rank: int, at: float, event: Transferred) -> None:
        if not 0 <= event.peer < MAX_MEMBERS or event.peer == rank:
            return
        self.pairs.setdefault((event.peer, rank), PairTotals()).add_received_at(at, event)
        if event.returned or event.retransmitted:
            self.pairs.setdefault((rank, event.peer), PairTotals()).add_sent(event)
        whole = event.nbytes + event.missing
        if whole > 0:
            self._put(f"missing@{rank}", at, event.missing / whole)

    def _noted(self, rank: int, at: float, event: Noted) -> None:
        """If several ranks note, keep the lowest rank's series: replicas are equal."""
        if self.noting_rank is None or rank < self.noting_rank:
            self.noting_rank = rank
            for name in ("training_loss", "accuracy"):
                self.series.pop(name, None)
        if rank == self.noting_rank:
            self._put("training_loss", at, event.loss)
            self._put("accuracy", at, event.accuracy)

    def _planned(self, at: float, event: Planned) -> None:
        """Keep a version once, although several members record it."""
        if not any((known.version, known.step) == (event.version, event.step) for _, known in self.plans):
            self.plans.append((at, event))
