"""Run outcome: what a verdict is made of, taken from a run's state or from a handle's summary. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gradwire.observe.format import clean
from gradwire.observe.run_status import Status
from gradwire.observe.state import RunState
from gradwire.observe.step_split import StepSplit

# Levels at which the gradient is sent as it is.
UNCOMPRESSED: Final = frozenset({"off", "plain DDP"})


@dataclass(frozen=True, slots=True)
class LastDecision:
    """The decision that was in force at the end."""

    step: int
    level: str
    reason: str


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """A run in the numbers that decide a verdict. Times are seconds since the run began.

    `plain` is what the cost model predicts for a step of plain DDP, as a mean over the run. `price` is how many times
    the steps of uncompressed training the levels in use are predicted to need. `losses` and `accuracies` are (time,
    value) as noted.
    """

    name: str
    status: Status
    world_size: int
    parameters: int
    steps: int
    split: StepSplit | None
    plain: float | None = None
    price: float | None = None
    level: str = ""
    level_seconds: dict[str, float] | None = None
    changes: int = 0
    decision: LastDecision | None = None
    transport: str = ""
    guard: str = ""
    rounds: str = ""
    advice: str = ""
    faults: int = 0
    losses: tuple[tuple[float, float], ...] = ()
    accuracies: tuple[tuple[float, float], ...] = ()
    failure: str = ""
    ruin: str = ""

    @property
    def uncompressed(self) -> bool:
        """Nothing but the whole gradient was sent, after every step."""
        return bool(self.level_seconds) and set(self.level_seconds or ()) <= UNCOMPRESSED and not self.rounds

    @property
    def adaptive(self) -> bool:
        """A controller chose the level; `level` is the setting."""
        return self.level in ("auto", "netsense", "dc2")


def outcome_of(name: str, state: RunState) -> RunOutcome:
    """The outcome of a recorded run so far."""
    notes = [(note.elapsed, note.noted) for note in state.notes]
    losses = tuple((at, one.loss) for at, one in notes if one.loss is not None)
    accuracies = tuple((at, one.accuracy) for at, one in notes if one.accuracy is not None)
    last = state.decisions[-1][1] if state.decisions else None
    chosen = state.chosen
    return RunOutcome(
        name=clean(name, 40),
        status=state.status,
        world_size=state.world_size,
        parameters=state.parameters,
        steps=state.steps,
        split=state.whole_split,
        plain=None if state.rounds.count else mean(state.series.get("predicted_plain") or ()),
        price=price_of(state.level_seconds, {level: one.used for level, one in state.prices.levels.items()}),
        level=clean(str(state.config.get("level", "")), 60),
        level_seconds=dict(state.level_seconds),
        changes=state.changes,
        decision=LastDecision(last.step, clean(last.level, 60), clean(last.reason)) if last else None,
        transport=f"{clean(chosen.transport, 40)} since step {chosen.step}: {clean(chosen.reason)}" if chosen else "",
        guard=state.guard.verdict,
        rounds=state.rounds.headline,
        advice=_advice(state),
        faults=sum(state.faults.values()),
        losses=losses,
        accuracies=accuracies,
        failure=_failure(state),
        ruin=state.health.ruin(state.step, [loss for _, loss in losses], [share for _, share in accuracies]),
    )


def mean(series: Iterable[tuple[float, float]]) -> float | None:
    values = [value for _, value in series]
    return sum(values) / len(values) if values else None


def price_of(seconds: dict[str, float], prices: dict[str, float]) -> float | None:
    """The mean price of the levels, each as long as it was used; None if a level that was used much has none."""
    priced = {level: 1.0 if level in UNCOMPRESSED else prices.get(level) for level in seconds}
    known = {level: price for level, price in priced.items() if price is not None}
    spent, whole = sum(seconds[level] for level in known), sum(seconds.values())
    if not known or spent < 0.9 * whole:
        return None
    return sum(seconds[level] * price for level, price in known.items()) / spent if spent else None


def _advice(state: RunState) -> str:
    if state.advice is None:
        return ""
    cap, gain = state.advice.bucket_cap_mb, state.advice.gain
    return f"DDP(bucket_cap_mb={cap}) would shorten a step by about {gain:.0%} (more overlap)"


def _failure(state: RunState) -> str:
    """Why a failed run failed: what a rank recorded, or which ranks disappeared."""
    if state.status != "failed":
        return ""
    causes = [incident for incident in state.incidents if incident.kind == "failed"]
    if causes:
        return f"step {causes[-1].step}, {causes[-1].who}: {clean(causes[-1].detail, 400)}"
    missing = state.missing
    if not missing:
        return "no rank is left"
    who = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(map(str, missing[:16]))}"
    return f"after step {state.step} {who} stopped without an end or an error: killed, or the host went down"
