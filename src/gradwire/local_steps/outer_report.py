"""Outer report: emits what an outer step did."""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.clock import Clock
from gradwire.events import OuterStepped, Sink, finite
from gradwire.local_steps.divergence import Divergence


@dataclass(frozen=True, slots=True)
class OuterFacts:
    """How an outer step came about; the fields are those of `OuterStepped`."""

    local_steps: int
    sync_every: int
    reason: str
    fragment: int | None = None
    fragments: int = 1
    delay: int = 0
    waited: float = 0.0
    sync_seconds: float = 0.0
    weight: float | None = None
    rank_steps: tuple[int, ...] = ()
    rank_wait: float = 0.0


@dataclass(frozen=True, slots=True)
class OuterReporter:
    """Emits `outer_stepped` events of one session."""

    sink: Sink
    clock: Clock

    def emit(self, step: int, facts: OuterFacts, found: Divergence, outer_norm: float) -> None:
        """`step` is the session's."""
        self.sink.emit(
            OuterStepped(
                at=self.clock.now(),
                step=step,
                local_steps=facts.local_steps,
                sync_every=facts.sync_every,
                reason=facts.reason,
                own_norm=finite(found.own_norm),
                norm=finite(found.norm),
                alignment=finite(found.alignment),
                outer_norm=finite(outer_norm),
                waited=facts.waited,
                fragment=facts.fragment,
                fragments=facts.fragments,
                delay=facts.delay,
                sync_seconds=facts.sync_seconds,
                weight=facts.weight,
                rank_steps=tuple(facts.rank_steps),
                rank_wait=facts.rank_wait,
                ranks=tuple(found.ranks),
            )
        )
