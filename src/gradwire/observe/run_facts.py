"""Run facts: what a report says about one run, taken from its RunState; a report in JSON is a list of them."""

from __future__ import annotations

import statistics
from typing import Any, Final

import msgspec

from gradwire.observe.outcome import RunOutcome, outcome_of
from gradwire.observe.run_status import Status
from gradwire.observe.state import RunState
from gradwire.observe.verdict import Verdict, judge

QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
# Target accuracies if the user names none: shares of the best accuracy of all runs.
SHARES: Final = (0.8, 0.9, 0.95, 0.99)


class DecisionFact(msgspec.Struct, frozen=True):
    """One change of level."""

    elapsed: float
    step: int
    level: str
    reason: str


class RoundFacts(msgspec.Struct, frozen=True):
    """Local steps of one run, on its lowest rank. Alignment and norms are those of the `outer_stepped` events."""

    outer_steps: int
    sync_every: int
    fragments: int
    delay: int
    waited: float
    alignment: dict[str, float]
    norm: dict[str, float]
    outer_norm: dict[str, float]
    headline: str
    # Where rounds end by time: their seconds, the steps of every rank in the last one, and the seconds that this rank
    # stood still for slower ones.
    sync_seconds: float = 0.0
    rank_steps: tuple[int, ...] = ()
    rank_wait: float = 0.0


class PriceFact(msgspec.Struct, frozen=True):
    """What a level costs: how many times the steps of uncompressed training, predicted and as noted losses show it."""

    predicted: float
    used: float
    realised: float | None
    low: float | None
    high: float | None
    sentence: str


class RunFacts(msgspec.Struct, frozen=True):
    """One run in numbers: seconds and bytes. `split` is the mean step over all ranks: `seconds` and the parts that add
    up to it, all 0 if only the whole step was recorded; quantiles are those of the lowest rank."""

    name: str
    world_size: int
    parameters: int
    steps: int
    elapsed: float
    ended: bool
    status: Status
    step_mean: float
    step_quantiles: dict[str, float]
    split: dict[str, float]
    gradient_bytes: int
    wire_bytes: int
    plain_bytes: int
    levels: dict[str, int]
    level_seconds: dict[str, float]
    changes: int
    decisions: tuple[DecisionFact, ...]
    best_accuracy: float | None
    reached: dict[str, float | None]
    bandwidth: dict[str, float]
    rtt: dict[str, float]
    transport: dict[str, Any]
    faults: dict[str, int]
    dropped: int
    config: dict[str, Any]
    damage: str = ""
    # How often the accuracy guard reduced compression, and a sentence on it; empty if never.
    guard_acts: int = 0
    guard: str = ""
    verdict: Verdict = Verdict("open", "")
    # None without local steps.
    rounds: RoundFacts | None = None
    # By level, where a controller has predicted it.
    prices: dict[str, PriceFact] = {}

    @property
    def saved(self) -> float:
        """Bytes of plain DDP divided by bytes sent."""
        return self.plain_bytes / self.wire_bytes if self.wire_bytes else 1.0


def facts(
    name: str, state: RunState, targets: tuple[float, ...] = (), damage: str = "", base: RunOutcome | None = None
) -> RunFacts:
    """The facts of one run; `targets` are the accuracies whose time is reported, `base` is compared with."""
    start = state.started or 0.0
    sums, split = state.transport, state.whole_split
    transport = {name: getattr(sums, name) for name in ("transfers", "nbytes", "missing", "returned", "retransmitted")}
    return RunFacts(
        name=name,
        world_size=state.world_size,
        parameters=state.parameters,
        steps=state.steps,
        elapsed=state.elapsed,
        ended=state.ended,
        status=state.status,
        step_mean=split.seconds if split else 0.0,
        step_quantiles={label: state.spread.quantile(share) for label, share in QUANTILES.items()},
        split=split._asdict() if split else {},
        gradient_bytes=state.gradient_bytes,
        wire_bytes=state.wire_bytes,
        plain_bytes=state.plain_bytes,
        levels=dict(state.level_steps),
        level_seconds=dict(state.level_seconds),
        changes=state.changes,
        decisions=tuple(DecisionFact(at - start, d.step, d.level, d.reason) for at, d in state.decisions),
        best_accuracy=best_accuracy(state),
        reached={f"{target:g}": state.reached(target) for target in targets},
        bandwidth=_extent(state, "bandwidth"),
        rtt=_extent(state, "rtt"),
        transport={**transport, "closes": dict(sums.closes)} if sums.transfers else {},
        faults=dict(state.faults),
        dropped=state.dropped,
        config=state.config,
        damage=damage,
        guard_acts=state.guard.count,
        guard=state.guard.verdict,
        verdict=judge(outcome_of(name, state), base),
        rounds=_rounds(state),
        prices={level: _price(state, level) for level in state.prices.levels},
    )


def _price(state: RunState, level: str) -> PriceFact:
    last = state.prices.levels[level]
    numbers = (last.predicted, last.used, last.realised, last.low, last.high)
    return PriceFact(*numbers, state.prices.sentence(level))


def _rounds(state: RunState) -> RoundFacts | None:
    rounds = state.rounds
    if rounds.last is None:
        return None
    return RoundFacts(
        outer_steps=rounds.count,
        sync_every=rounds.last.sync_every,
        fragments=rounds.last.fragments,
        delay=rounds.last.delay,
        waited=rounds.waited,
        alignment=_extent(state, "alignment"),
        norm=_extent(state, "norm"),
        outer_norm=_extent(state, "outer_norm"),
        headline=rounds.headline,
        sync_seconds=rounds.last.sync_seconds,
        rank_steps=rounds.last.rank_steps,
        rank_wait=rounds.rank_wait,
    )


def best_accuracy(state: RunState) -> float | None:
    return max((n.noted.accuracy for n in state.notes if n.noted.accuracy is not None), default=None)


def targets_for(states: list[RunState]) -> tuple[float, ...]:
    """Target accuracies: shares of the best run's accuracy, rounded to two digits."""
    best = max((accuracy for state in states if (accuracy := best_accuracy(state)) is not None), default=None)
    return () if best is None else tuple(dict.fromkeys(round(share * best, 2) for share in SHARES))


def _extent(state: RunState, name: str) -> dict[str, float]:
    series = state.series.get(name)
    if not series or not len(series):
        return {}
    return {"min": min(series.values), "median": statistics.median(series.values), "max": max(series.values)}
