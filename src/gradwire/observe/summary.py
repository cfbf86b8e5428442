"""Summary: adds up events for the summary that a handle prints."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from gradwire.events import (
    Advised,
    Attached,
    Decided,
    Event,
    Failed,
    Faulted,
    NonFinite,
    Noted,
    OuterStepped,
    Priced,
    Sensed,
    Stepped,
    Synchronised,
    TransportChosen,
)
from gradwire.observe.guard_acts import ADVICE, GuardActs
from gradwire.observe.health import TrainingHealth
from gradwire.observe.level_prices import LevelPrices
from gradwire.observe.local_rounds import LocalRounds
from gradwire.observe.outcome import RunOutcome, price_of
from gradwire.observe.step_split import SplitSum, StepSplit
from gradwire.observe.verdict import Verdict, judge
from gradwire.types import all_reduce_bytes
from gradwire.units import Bytes, Rate, Seconds

# Levels that a summary names: a warm-up alone may have used a hundred.
NAMED: Final = 6


@dataclass(frozen=True, slots=True)
class Summary:
    """What a session has done so far on this rank."""

    rank: int
    world_size: int
    parameters: int
    steps: int
    gradient_bytes: int
    plain_bytes: int
    wire_bytes: int
    sync_seconds: float
    levels: dict[str, int]
    reasons: dict[int, str]
    changes: int
    sensed: Sensed | None
    advised: Advised | None
    chosen: TransportChosen | None
    nonfinite_steps: int
    errors: tuple[str, ...]
    # What the accuracy guard did; only the rank that decides knows it.
    guard: GuardActs = field(default_factory=GuardActs)
    # Outer steps, where local steps are used; a step is a round then.
    rounds: LocalRounds = field(default_factory=LocalRounds)
    # What levels cost in steps; only the rank that decides knows it.
    prices: LevelPrices = field(default_factory=LevelPrices)
    # The mean step, seconds by level, and what the cost model predicts for a step of plain DDP, as a mean of all steps.
    split: StepSplit | None = None
    level_seconds: dict[str, float] = field(default_factory=dict)
    plain: float | None = None
    # Whether the last thing that happened was an error, and what looks ruined; empty if nothing.
    failed: bool = False
    ruin: str = ""
    level: str = ""

    @property
    def verdict(self) -> Verdict:
        """Faster or not, where the time went, what to try next, as far as this rank knows."""
        return judge(
            RunOutcome(
                name="this run",
                status="failed" if self.failed else "ended",
                world_size=self.world_size,
                parameters=self.parameters,
                steps=self.steps,
                split=self.split,
                plain=None if self.rounds.count else self.plain,
                price=price_of(self.level_seconds, {name: one.used for name, one in self.prices.levels.items()}),
                level=self.level,
                level_seconds=self.level_seconds,
                guard=self.guard.verdict,
                rounds=self.rounds.headline,
                failure=self.errors[-1] if self.errors else "",
                ruin=self.ruin,
            )
        )

    @property
    def saved(self) -> float:
        """Bytes that plain DDP would have sent divided by the bytes this rank sent."""
        return self.plain_bytes / self.wire_bytes if self.wire_bytes else 1.0

    def __str__(self) -> str:
        steps, buckets = max(self.steps, 1), max(sum(self.levels.values()), 1)
        verdict = self.verdict
        # The other ranks do not have the estimate of the network that a prediction needs.
        told = self.rank == 0 or verdict.tone == "bad"
        lines = [
            f"gradwire on rank {self.rank} of {self.world_size}: {self.steps} steps, {self.parameters:,} parameters",
            *([f"  {verdict.headline}"] if told else []),
            *([f"  {verdict.time}"] if verdict.time else []),
            f"  sent {Bytes(self.wire_bytes // steps)} a step, plain DDP {Bytes(self.plain_bytes // steps)}"
            f" ({self.saved:.1f}x less)",
            f"  mean time from bucket ready to reduced: {Seconds(self.sync_seconds / buckets)}",
            f"  levels: {_most_used(self.levels)}",
        ]
        lines += [f"  local steps: {self.rounds.headline}"] if self.rounds.count else []
        lines += [f"  bucket {bucket}: {reason}" for bucket, reason in sorted(self.reasons.items())]
        if self.sensed is not None and self.sensed.bandwidth is not None:
            trip, rate = Seconds(self.sensed.rtprop or 0.0), Rate(self.sensed.bandwidth)
            lines.append(f"  network: {rate}, round trip {trip}; the level changed {self.changes} times")
        lines += [f"  steps: {self.prices.sentence(level)}" for level in self.prices.levels]
        if self.chosen is not None:
            lines.append(f"  transport: {self.chosen.transport} since step {self.chosen.step}: {self.chosen.reason}")
        if self.advised is not None:
            cap, gain = self.advised.bucket_cap_mb, self.advised.gain
            lines.append(f"  DDP(bucket_cap_mb={cap}) would shorten a step by about {gain:.0%} (more overlap)")
        lines += [f"  next: {step}" for step in verdict.next if told and step != ADVICE]
        if self.nonfinite_steps:
            lines.append(f"  NaN or infinite gradients in {self.nonfinite_steps} buckets; not changed, as in plain DDP")
        if self.guard.count:
            lines.append(f"  WARNING: {self.guard.verdict}; {ADVICE}")
        lines += [f"  error: {error}" for error in self.errors]
        return "\n".join(lines)


@dataclass(slots=True)
class SummarySink:
    """A sink that adds up events; safe to call from any thread."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _attached: Attached | None = None
    _last_step: int = -1
    _count: int = 0
    _gradient: int = 0
    _wire: int = 0
    _seconds: float = 0.0
    # The buckets of the last step.
    _buckets: set[int] = field(default_factory=set)
    _levels: Counter[str] = field(default_factory=Counter)
    _reasons: dict[int, str] = field(default_factory=dict)
    _sensed: Sensed | None = None
    _advised: Advised | None = None
    _chosen: TransportChosen | None = None
    _changes: int = 0
    _nonfinite: int = 0
    _errors: list[str] = field(default_factory=list)
    _guard: GuardActs = field(default_factory=GuardActs)
    _rounds: LocalRounds = field(default_factory=LocalRounds)
    _prices: LevelPrices = field(default_factory=LevelPrices)
    _health: TrainingHealth = field(default_factory=TrainingHealth)
    _split: SplitSum = field(default_factory=SplitSum)
    _level_seconds: dict[str, float] = field(default_factory=dict)
    # Predicted steps of plain DDP: their sum and number.
    _plain: tuple[float, int] = (0.0, 0)
    _failed_at: int = -1

    def emit(self, event: Event) -> None:  # noqa: PLR0912 - one branch for each kind of event
        with self._lock:
            match event:
                case Synchronised():
                    self._add(event)
                case Decided():
                    self._changes += event.bucket in self._reasons and event.bucket == 0
                    self._reasons[event.bucket] = f"{event.level}: {event.reason}"
                case Sensed():
                    self._sensed = event
                    if event.predicted_plain is not None:
                        self._plain = (self._plain[0] + event.predicted_plain, self._plain[1] + 1)
                case Stepped():
                    self._split.add(event)
                    self._level_seconds[event.level] = self._level_seconds.get(event.level, 0.0) + event.seconds
                case Advised():
                    self._advised = event
                case TransportChosen():
                    self._chosen = event
                case Priced():
                    self._prices.take(event)
                case NonFinite():
                    self._nonfinite += 1
                    self._health.take(event)
                case Noted():
                    self._health.take(event)
                case Failed():
                    self._errors.append(event.error)
                    self._failed_at = event.step
                case Faulted():
                    self._guard.take(event)
                case OuterStepped():
                    self._rounds.take(event)
                    self._forget_other_buckets(event)
                case Attached():
                    self._attached = event

    def summary(self) -> Summary:
        with self._lock:
            attached = self._attached or Attached(0.0, 0, 1, 0, {})
            world = attached.world_size
            return Summary(
                attached.rank,
                world,
                attached.parameters,
                self._count,
                self._gradient,
                all_reduce_bytes(self._gradient, world),
                self._wire,
                self._seconds,
                dict(self._levels),
                dict(self._reasons),
                self._changes,
                self._sensed,
                self._advised,
                self._chosen,
                self._nonfinite,
                tuple(self._errors),
                replace(self._guard),
                self._rounds.copy(),
                self._prices.copy(),
                self._split.mean(),
                dict(self._level_seconds),
                self._plain[0] / self._plain[1] if self._plain[1] else None,
                self._failed_at >= max(0, self._last_step),
                self._health.ruin(self._last_step, (), ()),
                str(attached.config.get("level", "")),
            )

    def _add(self, event: Synchronised) -> None:
        if event.step > self._last_step:
            self._last_step = event.step
            self._count += 1
            self._buckets.clear()
        if event.step == self._last_step:
            self._buckets.add(event.bucket)
        self._gradient += event.nbytes
        self._wire += event.wire_bytes
        self._seconds += event.seconds
        self._levels[event.level] += 1

    def _forget_other_buckets(self, event: OuterStepped) -> None:
        """After all of the weights were synchronised: gradients, which came before, are in other buckets."""
        if event.fragment is None and event.step == self._last_step:
            self._reasons = {bucket: reason for bucket, reason in self._reasons.items() if bucket in self._buckets}


def _most_used(levels: Mapping[str, int]) -> str:
    """The levels of buckets with their counts, most used first."""
    ranked = sorted(levels.items(), key=lambda one: (-one[1], one[0]))
    named, others = ranked[:NAMED], ranked[NAMED:]
    text = ", ".join(f"{level} x{count}" for level, count in named)
    return f"{text}, {len(others)} more x{sum(count for _, count in others)}" if others else text
