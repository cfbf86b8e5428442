"""State: `RunState` adds up the records of a run; watch, reports, the dashboard and Prometheus all show it.

Memory is bounded: series are thinned, lists keep their last entries, links and ranks have one entry each and at most
MOST_LINKS and MOST_RANKS of them. Every rank records each step; the job's step is that of the lowest known rank.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, Final

from gradwire.events import (
    Advised,
    Attached,
    Decided,
    Dropped,
    Ended,
    Failed,
    Faulted,
    LinkSample,
    LinksSensed,
    NonFinite,
    Noted,
    Opened,
    OuterStepped,
    Planned,
    Priced,
    Sensed,
    Stepped,
    Transferred,
    TransportChosen,
    Warned,
)
from gradwire.observe.guard_acts import GuardActs
from gradwire.observe.health import TrainingHealth
from gradwire.observe.level_prices import LevelPrices
from gradwire.observe.local_rounds import LocalRounds
from gradwire.observe.reader import Record
from gradwire.observe.run_status import SILENCE, Incident, RankOutcome, Status, status_of
from gradwire.observe.series import Distribution, Series
from gradwire.observe.step_split import PARTS, RECENT, SplitSum, StepSplit, mean_split
from gradwire.observe.transport_totals import TransportTotals

MOST_RANKS: Final = 4096
MOST_LINKS: Final = 65_536
MOST_LEVELS: Final = 64
KEPT: Final = 500
# Numbers of an outer step that are plotted.
ROUND_SERIES: Final = ("alignment", "norm", "outer_norm", "waited")


@dataclass(slots=True)
class RankState:
    """One rank's last step and its sums."""

    host: str = ""
    site: str = ""
    last: Stepped | None = None
    recent: deque[Stepped] = field(default_factory=lambda: deque(maxlen=RECENT))
    time: float = 0.0
    steps: int = 0
    gradient_bytes: int = 0
    wire_bytes: int = 0
    plain_bytes: int = 0
    outcome: RankOutcome = field(default_factory=RankOutcome)


@dataclass(slots=True)
class Note:
    """A user's note, `elapsed` seconds after the run began."""

    elapsed: float
    noted: Noted


@dataclass(slots=True)
class RunState:
    """A run so far; `take` adds one record."""

    run: str = ""
    world_size: int = 0
    parameters: int = 0
    config: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    started: float | None = None
    time: float = 0.0
    step: int = 0
    steps: int = 0
    level: str = ""
    total_steps: int | None = None
    ranks: dict[int, RankState] = field(default_factory=dict)
    decisions: deque[tuple[float, Decided]] = field(default_factory=lambda: deque(maxlen=KEPT))
    changes: int = 0
    sensed: Sensed | None = None
    links: dict[tuple[int, int], LinkSample] = field(default_factory=dict)
    rates: dict[tuple[int, int], deque[float]] = field(default_factory=dict)
    trips: dict[tuple[int, int], deque[float]] = field(default_factory=dict)
    advice: Advised | None = None
    # Where the job chooses its transport: the last choice.
    chosen: TransportChosen | None = None
    plan: Planned | None = None
    plans: int = 0
    transport: TransportTotals = field(default_factory=TransportTotals)
    notes: deque[Note] = field(default_factory=lambda: deque(maxlen=10 * KEPT))
    incidents: deque[Incident] = field(default_factory=lambda: deque(maxlen=KEPT))
    faults: Counter[str] = field(default_factory=Counter)
    guard: GuardActs = field(default_factory=GuardActs)
    health: TrainingHealth = field(default_factory=TrainingHealth)
    # What levels cost in steps.
    prices: LevelPrices = field(default_factory=LevelPrices)
    # Outer steps of the lowest rank, where local steps are used.
    rounds: LocalRounds = field(default_factory=LocalRounds)
    dropped: int = 0
    level_steps: Counter[str] = field(default_factory=Counter)
    level_seconds: dict[str, float] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    spread: Distribution = field(default_factory=Distribution)
    whole: SplitSum = field(default_factory=SplitSum)
    series: dict[str, Series] = field(default_factory=dict)
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=60))
    recent_rates: deque[float] = field(default_factory=lambda: deque(maxlen=60))
    # Predicted seconds of a plain DDP step, at each of the last steps.
    plain_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    # Whether nothing was written to the recording for SILENCE seconds; set by `update_silence`.
    silent: bool = False
    _lead: int | None = None
    _failure: Incident | None = None

    def take(self, record: Record) -> None:  # noqa: PLR0912 - one branch for each kind of event
        """Add one record. The order of records matters only for the fields that keep the last value."""
        rank, time, event = record
        self.started = time if self.started is None else self.started
        self.time = max(self.time, time)
        match event:
            case Stepped():
                self._stepped(rank, time, event)
            case OuterStepped():
                self._outer_stepped(rank, time, event)
            case Sensed():
                self._sensed(time, event)
            case LinksSensed():
                self._links_sensed(event)
            case Decided():
                self._decided(rank, time, event)
            case Transferred():
                self.transport.add_received(event)
                self.transport.add_sent(event)
            case Noted():
                self._noted(time, event)
            case Planned():
                self.plan, self.plans = event, self.plans + 1
            case Advised():
                self.advice = event
            case TransportChosen():
                self.chosen = event
            case Priced():
                self.prices.take(event)
            case Attached():
                self._attached(event)
            case Opened():
                self.run, self.world_size = event.run or self.run, max(self.world_size, event.world_size)
                self._rank(rank)  # known even if it is killed before its first events are written
            case Dropped():
                self.dropped += event.count
            case Ended():
                self._rank(rank).outcome.ended = True
                self.step = max(self.step, event.step) if rank == self._lead else self.step
            case Failed():
                self._failed(rank, time, event)
            case Faulted() | NonFinite() | Warned():
                self._incident(rank, time, event)

    @property
    def elapsed(self) -> float:
        return 0.0 if self.started is None else self.time - self.started

    @property
    def status(self) -> Status:
        return status_of((rank.outcome for rank in self.ranks.values()), self.silent)

    @property
    def ended(self) -> bool:
        """Every rank that was not lost has ended normally."""
        return self.status == "ended"

    @property
    def missing(self) -> list[int]:
        """Ranks of a finished run that recorded neither an end nor a failure: they or their hosts were killed."""
        if self.status == "running":
            return []
        own = {rank: known.outcome for rank, known in self.ranks.items()}
        return sorted(rank for rank, one in own.items() if not one.ended and one.failed is None)

    def update_silence(self, now: float, touched: float) -> None:
        """Set `silent` from the time the files were last written or touched; both in Unix seconds."""
        self.silent = now - max(self.time, touched) > SILENCE

    @property
    def time_left(self) -> float | None:
        """Seconds until `total_steps` at the speed of the last steps; None if unknown or the run is over."""
        split = self.split
        if self.total_steps is None or split is None or self.status != "running":
            return None
        return max(0, self.total_steps - self.step) * split.seconds

    @property
    def split(self) -> StepSplit | None:
        """The current step: the mean of all ranks' last RECENT steps."""
        return mean_split(step for rank in self.ranks.values() for step in rank.recent)

    @property
    def whole_split(self) -> StepSplit | None:
        """A step of the whole run: the mean over all ranks and steps."""
        return self.whole.mean()

    @property
    def gradient_bytes(self) -> int:
        return sum(rank.gradient_bytes for rank in self.ranks.values())

    @property
    def wire_bytes(self) -> int:
        return sum(rank.wire_bytes for rank in self.ranks.values())

    @property
    def plain_bytes(self) -> int:
        return sum(rank.plain_bytes for rank in self.ranks.values())

    @property
    def bytes_saved(self) -> int:
        return self.plain_bytes - self.wire_bytes

    @property
    def predicted_plain(self) -> float | None:
        """Seconds that the cost model predicts for a plain DDP step now; None if it has no estimate."""
        return sum(self.plain_seconds) / len(self.plain_seconds) if self.plain_seconds else None

    @property
    def predicted_speedup(self) -> float | None:
        """Predicted time of a plain DDP step over the measured step time: `predicted_plain` / `split.seconds`."""
        plain, split = self.predicted_plain, self.split
        return plain / split.seconds if plain is not None and split is not None and split.seconds > 0 else None

    def noted(self, name: str) -> float | None:
        """The last noted value of this name: `loss`, `accuracy` or `epoch`."""
        values = (getattr(note.noted, name) for note in reversed(self.notes))
        return next((value for value in values if value is not None), None)

    def reached(self, accuracy: float) -> float | None:
        """Seconds from the start until this accuracy was first noted."""
        return next(
            (n.elapsed for n in self.notes if n.noted.accuracy is not None and n.noted.accuracy >= accuracy), None
        )

    def _rank(self, rank: int) -> RankState:
        if rank not in self.ranks and len(self.ranks) >= MOST_RANKS:
            return RankState()
        return self.ranks.setdefault(rank, RankState())

    def _attached(self, event: Attached) -> None:
        self._follow(event.rank)
        known = self._rank(event.rank)
        if known.host not in ("", event.host):
            self._forget_links(event.rank)
        known.host, known.site, known.outcome = event.host, event.site, RankOutcome()
        self.world_size = max(self.world_size, event.world_size)
        self.parameters, self.config = event.parameters, event.config
        self.versions = {"gradwire": event.gradwire, "torch": event.torch}

    def _stepped(self, rank: int, time: float, event: Stepped) -> None:
        known = self._rank(rank)
        known.last, known.time, known.steps = event, time, known.steps + 1
        known.outcome.stepped(event.step)
        known.recent.append(event)
        self.whole.add(event)
        known.gradient_bytes += event.gradient_bytes
        known.wire_bytes += event.wire_bytes
        known.plain_bytes += event.plain_bytes
        self._follow(rank)
        if rank == self._lead:
            self._job_step(time, event)

    def _follow(self, rank: int) -> None:
        """Use the lowest rank's steps as the job's. When a lower rank appears, the sums of the higher one are reset."""
        if self._lead is not None and rank >= self._lead:
            return
        self._lead = rank
        if self.rounds.count:
            self.rounds = LocalRounds()
            for name in ROUND_SERIES:
                self.series.pop(name, None)
        if self.steps:
            self.steps = 0
            self.level_steps.clear()
            self.level_seconds.clear()
            self.recent.clear()
            self.parts, self.spread = dict.fromkeys(PARTS, 0.0), Distribution()
            for name in ("seconds", *PARTS, "wire_bytes", "residual"):
                self.series.pop(name, None)

    def _job_step(self, time: float, event: Stepped) -> None:
        self.step, self.steps, self.level = event.step, self.steps + 1, event.level
        if event.level in self.level_steps or len(self.level_steps) < MOST_LEVELS:
            self.level_steps[event.level] += 1
            self.level_seconds[event.level] = self.level_seconds.get(event.level, 0.0) + event.seconds
        self.spread.add(event.seconds)
        self.recent.append(event.seconds)
        self._plot("seconds", time, event.seconds)
        for part in PARTS:
            value = getattr(event, part)
            self.parts[part] += value
            self._plot(part, time, value)
        self._plot("wire_bytes", time, event.wire_bytes)
        if event.residual is not None:
            self._plot("residual", time, event.residual)

    def _outer_stepped(self, rank: int, time: float, event: OuterStepped) -> None:
        self._follow(rank)
        if rank == self._lead:
            self.rounds.take(event)
            for name in ROUND_SERIES:
                value = getattr(event, name)
                if value is not None:
                    self._plot(name, time, value)

    def _sensed(self, time: float, event: Sensed) -> None:
        self.sensed = event
        if event.bandwidth is not None:
            self.recent_rates.append(event.bandwidth)
            self._plot("bandwidth", time, event.bandwidth)
        if event.rtprop is not None:
            self._plot("rtt", time, event.rtprop + event.queueing)
        if event.predicted_plain is not None:
            self.plain_seconds.append(event.predicted_plain)
            self._plot("predicted_plain", time, event.predicted_plain)

    def _links_sensed(self, event: LinksSensed) -> None:
        for link in event.links:
            key = (link.source, link.destination)
            if key not in self.links and len(self.links) >= MOST_LINKS:
                continue
            self.links[key] = link
            if link.rate is not None:
                self.rates.setdefault(key, deque(maxlen=24)).append(link.rate)
            if link.rtt is not None:
                self.trips.setdefault(key, deque(maxlen=24)).append(link.rtt)

    def _forget_links(self, rank: int) -> None:
        """The rank was restarted on another host, so its measured links are those of the host before."""
        for measured in (self.links, self.rates, self.trips):
            for pair in [pair for pair in measured if rank in pair]:
                del measured[pair]

    def _decided(self, rank: int, time: float, event: Decided) -> None:
        """All ranks and buckets record the same decision; the lowest rank's first one is kept."""
        if rank != min(self.ranks, default=rank):
            return
        last = self.decisions[-1][1] if self.decisions else None
        if last is not None and (event.level, event.version) == (last.level, last.version):
            return
        self.decisions.append((time, event))
        self.changes += last is not None
        self.level = event.level

    def _noted(self, time: float, event: Noted) -> None:
        self.health.take(event)
        self.notes.append(Note(time - (self.started or time), event))
        self.total_steps = event.total_steps or self.total_steps
        self.step = max(self.step, event.step)  # a step is recorded one or two steps after it ends
        if event.accuracy is not None:
            self._plot("accuracy", time, event.accuracy)
        if event.loss is not None:
            self._plot("loss", time, event.loss)

    def _failed(self, rank: int, time: float, event: Failed) -> None:
        """Every rank records a failure, once for each bucket in progress: all of that is one incident."""
        outcome = self._rank(rank).outcome
        if not any(known.outcome.failed is not None for known in self.ranks.values()):
            self._failure = None
        outcome.failed = event.step if outcome.failed is None else outcome.failed
        if self._failure is not None:
            self._failure.merge(rank, event.error)
            return
        self._failure = Incident(time, rank, event.step, "failed", event.error, (rank,))
        self._add(self._failure)

    def _incident(self, rank: int, time: float, event: Faulted | NonFinite | Warned) -> None:
        match event:
            case Faulted(step=step, kind=kind, detail=detail, peer=peer):
                found = Incident(time, rank, step, kind, detail)
                self.guard.take(event)
                if peer is not None and kind in ("peer_lost", "peer_back"):
                    self._rank(peer).outcome.lost = kind == "peer_lost"
            case NonFinite(step=step, elements=elements):
                self.health.take(event)
                found = Incident(time, rank, step, "non_finite", f"{elements} elements were NaN or infinite")
            case Warned(message=message):
                found = Incident(time, rank, self.step, "warned", message)
        self._add(found)

    def _add(self, found: Incident) -> None:
        self.incidents.append(found)
        if found.kind in self.faults or len(self.faults) < MOST_LEVELS:
            self.faults[found.kind] += 1

    def _plot(self, name: str, time: float, value: float) -> None:
        self.series.setdefault(name, Series()).add(time, value)
