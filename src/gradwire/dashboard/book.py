"""Book: one run's events, folded into what the views show, in bounded memory.

Events of all ranks come in, in order within each rank, already placed on the run's own clock (seconds since it began).
The lists kept here are bounded by KEPT; columns by their capacity and MAX_COLUMNS; links and pairs by MAX_MEMBERS.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from gradwire.dashboard.column import Column
from gradwire.events import (
    Attached,
    Decided,
    Dropped,
    Ended,
    Event,
    Failed,
    Faulted,
    Link,
    LinksSensed,
    NonFinite,
    Noted,
    Opened,
    Planned,
    Sensed,
    Stepped,
    Transferred,
    Warned,
)

# Decisions, faults and plans kept of a run: the newest. A decision is under a kilobyte.
KEPT: Final = 4096
# Enough for 64 ranks with eight series each; further series are counted, not kept.
MAX_COLUMNS: Final = 640
# Ranks beyond this are counted in totals and absent from matrices.
MAX_MEMBERS: Final = 256
# Text from a file is cut here: a reason is a sentence.
MAX_TEXT: Final = 2000
# Steps over which "now" is taken, per rank.
RECENT: Final = 20

UNITS: Final = {
    "bandwidth": "B/s",
    "rtprop": "s",
    "queueing": "s",
    "delay": "s",
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


@dataclass(frozen=True, slots=True)
class DecisionKept:
    """A decision at a time of the run; `buckets` of the step share it."""

    at: float
    event: Decided
    buckets: int


@dataclass(frozen=True, slots=True)
class FaultKept:
    """A fault; the same one several times in a row is counted."""

    at: float
    rank: int
    step: int | None
    kind: str
    detail: str
    peer: int | None = None
    count: int = 1


@dataclass(slots=True)
class PairTotals:
    """All transfers from one rank to another."""

    transfers: int = 0
    nbytes: int = 0
    missing: int = 0
    returned: int = 0
    retransmitted: int = 0
    seconds: float = 0.0
    closes: dict[str, int] = field(default_factory=dict)
    recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=64))

    def add(self, at: float, event: Transferred) -> None:
        self.transfers += event.transfers
        self.nbytes += event.nbytes
        self.missing += event.missing
        self.returned += event.returned
        self.retransmitted += event.retransmitted
        self.seconds += event.seconds
        self.recent.append((at, event.nbytes))
        for name, count in list(event.closes.items())[:16]:
            if len(self.closes) < 16 or name in self.closes:
                self.closes[name[:32]] = self.closes.get(name[:32], 0) + count

    def load(self) -> float | None:
        """Bytes per second over the last transfers."""
        if len(self.recent) < 2:
            return None
        span = self.recent[-1][0] - self.recent[0][0]
        return sum(nbytes for _, nbytes in list(self.recent)[1:]) / span if span > 0 else None


@dataclass(slots=True)
class RankNow:
    """What one rank did so far."""

    attached: Attached | None = None
    first_step: int | None = None
    steps: int = 0
    last_at: float = 0.0
    ended: bool = False
    gradient_bytes: int = 0
    wire_bytes: int = 0
    plain_bytes: int = 0
    recent: deque[Stepped] = field(default_factory=lambda: deque(maxlen=RECENT))


@dataclass(slots=True)
class Book:
    """`take` folds one event in; everything else is read by the views."""

    ranks: dict[int, RankNow] = field(default_factory=dict)
    columns: dict[str, Column] = field(default_factory=dict)
    decisions: deque[DecisionKept] = field(default_factory=lambda: deque(maxlen=KEPT))
    plans: deque[tuple[float, Planned]] = field(default_factory=lambda: deque(maxlen=64))
    faults: deque[FaultKept] = field(default_factory=lambda: deque(maxlen=KEPT))
    links: dict[tuple[int, int], tuple[float, Link]] = field(default_factory=dict)
    pairs: dict[tuple[int, int], PairTotals] = field(default_factory=dict)
    sensed: tuple[float, Sensed] | None = None
    noted: tuple[float, Noted] | None = None
    total_steps: int | None = None
    world_size: int = 0
    duration: float = 0.0
    changed: int = 0
    decisions_seen: int = 0
    faults_seen: int = 0

    def take(self, rank: int, at: float, event: Event) -> None:
        """Fold in what `rank` noted at `at` seconds of the run."""
        self.changed += 1
        self.duration = max(self.duration, at)
        if rank not in self.ranks and len(self.ranks) >= MAX_MEMBERS:
            return
        now = self.ranks.setdefault(rank, RankNow())
        now.last_at = max(now.last_at, at)
        match event:
            case Stepped():
                self._stepped(now, rank, at, event)
            case Sensed():
                self._sensed(at, event)
            case Decided():
                self._decided(rank, at, event)
            case LinksSensed():
                self._links(at, event)
            case Transferred():
                self._transferred(rank, at, event)
            case Planned():
                self._planned(at, event)
            case Noted():
                self._noted(rank, at, event)
            case Opened(world_size=world_size):
                self.world_size = max(self.world_size, min(world_size, 1 << 20))
            case Attached():
                now.attached = event
                self.world_size = max(self.world_size, min(event.world_size, 1 << 20))
            case Ended():
                now.ended = True
            case _:
                self._fault(rank, at, event)

    @property
    def lowest(self) -> int:
        """The rank that speaks for the run where one is enough."""
        return min(self.ranks, default=0)

    @property
    def ended(self) -> bool:
        """Every rank seen closed its session in order."""
        return bool(self.ranks) and all(now.ended for now in self.ranks.values())

    def column(self, name: str) -> Column | None:
        """The column to append to, made when first asked for; None when there are too many."""
        if name not in self.columns:
            if len(self.columns) >= MAX_COLUMNS:
                return None
            self.columns[name] = Column()
        return self.columns[name]

    def warn(self, rank: int, kind: str, detail: str, at: float | None = None) -> None:
        """A fault that no event tells of, such as a damaged file."""
        self._add_fault(FaultKept(self.duration if at is None else at, rank, None, kind, detail[:MAX_TEXT]))
        self.changed += 1

    def _put(self, name: str, at: float, value: float | None) -> None:
        if value is None:
            return
        column = self.column(name)
        if column is not None:
            column.append(at, value)

    def _stepped(self, now: RankNow, rank: int, at: float, event: Stepped) -> None:
        now.first_step = event.step if now.first_step is None else now.first_step
        now.steps += 1
        now.gradient_bytes += event.gradient_bytes
        now.wire_bytes += event.wire_bytes
        now.plain_bytes += event.plain_bytes
        now.recent.append(event)
        for name in ("seconds", "compute", "encode", "wire", "wait", "residual"):
            self._put(f"{name}@{rank}", at, getattr(event, name))
        if event.plain_bytes:
            self._put(f"sent@{rank}", at, event.wire_bytes / event.plain_bytes)

    def _sensed(self, at: float, event: Sensed) -> None:
        self.sensed = (at, event)
        for name in ("bandwidth", "rtprop", "queueing", "delay", "loss", "predicted_plain"):
            self._put(name, at, getattr(event, name))

    def _decided(self, rank: int, at: float, event: Decided) -> None:
        """All ranks agree on a level, so the lowest one's word is kept; buckets decided together are one entry."""
        if rank != self.lowest:
            return
        last = self.decisions[-1] if self.decisions else None
        if last is not None and _same(last.event, event):
            self.decisions[-1] = DecisionKept(last.at, last.event, last.buckets + 1)
            return
        self.decisions_seen += 1
        self.decisions.append(DecisionKept(at, event, 1))

    def _links(self, at: float, event: LinksSensed) -> None:
        for link in event.links:
            if max(link.source, link.destination) < MAX_MEMBERS and min(link.source, link.destination) >= 0:
                self.links[link.source, link.destination] = (at - link.age, link)

    def _transferred(self, rank: int, at: float, event: Transferred) -> None:
        if not (0 <= event.peer < MAX_MEMBERS and 0 <= rank < MAX_MEMBERS):
            return
        self.pairs.setdefault((event.peer, rank), PairTotals()).add(at, event)
        whole = event.nbytes + event.missing
        if whole:
            self._put(f"missing@{rank}", at, event.missing / whole)

    def _planned(self, at: float, event: Planned) -> None:
        """Every member notes the plan it follows; a version is shown once."""
        if not any(known.version == event.version and known.step == event.step for _, known in self.plans):
            self.plans.append((at, event))

    def _noted(self, rank: int, at: float, event: Noted) -> None:
        """What the lowest rank notes is shown: replicas are equal, and users mostly note on rank 0 only."""
        if rank != self.lowest:
            return
        self.noted = (at, event)
        self.total_steps = event.total_steps if event.total_steps is not None else self.total_steps
        self._put("training_loss", at, event.loss)
        self._put("accuracy", at, event.accuracy)

    def _fault(self, rank: int, at: float, event: Event) -> None:
        match event:
            case NonFinite(step=step, bucket=bucket, elements=count):
                detail = f"bucket {bucket}: {count} elements of the gradient were NaN or infinite"
                self._add_fault(FaultKept(at, rank, step, "nonfinite", detail))
            case Faulted(step=step, kind=kind, detail=detail, peer=peer):
                self._add_fault(FaultKept(at, rank, step, kind[:40], detail[:MAX_TEXT], peer))
            case Failed(step=step, error=error):
                self._add_fault(FaultKept(at, rank, step, "failed", error[:MAX_TEXT]))
            case Warned(message=message):
                self._add_fault(FaultKept(at, rank, None, "warning", message[:MAX_TEXT]))
            case Dropped(count=count):
                detail = f"{count} events were not recorded: the writer could not keep up"
                self._add_fault(FaultKept(at, rank, None, "dropped", detail))
            case _:
                pass  # buckets in detail: the step's totals say it already

    def _add_fault(self, fault: FaultKept) -> None:
        self.faults_seen += 1
        last = self.faults[-1] if self.faults else None
        key = (fault.rank, fault.kind, fault.detail, fault.peer)
        if last is not None and (last.rank, last.kind, last.detail, last.peer) == key:
            self.faults[-1] = FaultKept(
                fault.at, fault.rank, fault.step, fault.kind, fault.detail, fault.peer, last.count + 1
            )
        else:
            self.faults.append(fault)


def _same(one: Decided, other: Decided) -> bool:
    return (one.step, one.level, one.reason, one.version) == (other.step, other.level, other.reason, other.version)
