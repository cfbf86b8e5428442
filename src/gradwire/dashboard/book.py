"""Book: one run, folded into what the views show, in bounded memory.

`RunState` is the fold that all views of gradwire share. A browser wants more: each rank's curves at any zoom, plans of
the past, each pair's transfers, each rank's settings. Those are kept here, bounded by the constants below.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from gradwire.dashboard.column import Column
from gradwire.events import Attached, LinksSensed, Noted, Planned, Sensed, Stepped, Transferred
from gradwire.observe.reader import Record
from gradwire.observe.state import RunState
from gradwire.observe.step_split import LONGEST

# Enough for 64 ranks with nine series each; further series are not kept.
MAX_COLUMNS: Final = 640
# Ranks from here on are counted in totals and absent from matrices.
MAX_MEMBERS: Final = 256
MAX_PLANS: Final = 64
MAX_CLOSES: Final = 16
# Nothing that is measured here is larger; sums of more could overflow.
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
}


@dataclass(slots=True)
class PairTotals:
    """All transfers from one rank to another: what arrived the receiver told, what came back the sender."""

    transfers: int = 0
    nbytes: int = 0
    missing: int = 0
    returned: int = 0
    retransmitted: int = 0
    seconds: float = 0.0
    closes: dict[str, int] = field(default_factory=dict)
    recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=64))

    def sent(self, event: Transferred) -> None:
        self.returned += event.returned
        self.retransmitted += event.retransmitted

    def came(self, at: float, event: Transferred) -> None:
        self.transfers += event.transfers
        self.nbytes += event.nbytes
        self.missing += event.missing
        self.seconds += max(0.0, min(event.seconds, LONGEST))
        self.recent.append((at, event.nbytes))
        for name, count in event.closes.items():
            if name in self.closes or len(self.closes) < MAX_CLOSES:
                self.closes[name] = self.closes.get(name, 0) + count

    def load(self) -> float | None:
        """Bytes per second over the last transfers; None until there were two at different times."""
        if len(self.recent) < 2:
            return None
        span = self.recent[-1][0] - self.recent[0][0]
        return sum(nbytes for _, nbytes in list(self.recent)[1:]) / span if span > 0 else None


@dataclass(slots=True)
class RunData:
    """`take` folds one record in; everything else is read by the views."""

    state: RunState = field(default_factory=RunState)
    columns: dict[str, Column] = field(default_factory=dict)
    attached: dict[int, Attached] = field(default_factory=dict)
    plans: deque[tuple[float, Planned]] = field(default_factory=lambda: deque(maxlen=MAX_PLANS))
    sensed_links: dict[tuple[int, int], float] = field(default_factory=dict)
    pairs: dict[tuple[int, int], PairTotals] = field(default_factory=dict)
    noting: int | None = None
    changed: int = 0
    impossible: int = 0

    def take(self, record: Record) -> None:
        """Fold in one record; one from another decade is counted and left out."""
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
        column = self.columns.get(name)
        if column is None:
            if len(self.columns) >= MAX_COLUMNS:
                return
            column = self.columns[name] = Column()
        column.append(at, value)

    def _stepped(self, rank: int, at: float, event: Stepped) -> None:
        for name in ("seconds", "compute", "encode", "wire", "wait", "residual"):
            self._put(f"{name}@{rank}", at, getattr(event, name))
        if event.plain_bytes:
            self._put(f"sent@{rank}", at, event.wire_bytes / event.plain_bytes)

    def _link_sensed(self, source: int, destination: int, at: float) -> None:
        if 0 <= source < MAX_MEMBERS and 0 <= destination < MAX_MEMBERS:
            self.sensed_links[source, destination] = at

    def _transferred(self, rank: int, at: float, event: Transferred) -> None:
        if not 0 <= event.peer < MAX_MEMBERS or event.peer == rank:
            return
        self.pairs.setdefault((event.peer, rank), PairTotals()).came(at, event)
        if event.returned or event.retransmitted:
            self.pairs.setdefault((rank, event.peer), PairTotals()).sent(event)
        whole = event.nbytes + event.missing
        if whole > 0:
            self._put(f"missing@{rank}", at, event.missing / whole)

    def _noted(self, rank: int, at: float, event: Noted) -> None:
        """Where several ranks note, the lowest one's curve is drawn: replicas are equal."""
        if self.noting is None or rank < self.noting:
            self.noting = rank
            for name in ("training_loss", "accuracy"):
                self.columns.pop(name, None)
        if rank == self.noting:
            self._put("training_loss", at, event.loss)
            self._put("accuracy", at, event.accuracy)

    def _planned(self, at: float, event: Planned) -> None:
        """A version that several members tell of is kept once."""
        if not any((known.version, known.step) == (event.version, event.step) for _, known in self.plans):
            self.plans.append((at, event))
