"""Governor: which level all ranks use at a step.

`begin_step` may change the decision, and an adaptive governor may block there; for the other buckets of the step the
decision stays. This module has the interface, what all governors share, and the governor of a fixed level.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from gradwire.clock import Clock
from gradwire.compress.build import check_chain
from gradwire.compress.gradient_sample import GradientSampler
from gradwire.decide.base import FootprintOf
from gradwire.decide.fixed import Fixed
from gradwire.events import Sink, Stepped
from gradwire.level import Level
from gradwire.runtime.event_reporter import Explain, unexplained
from gradwire.runtime.job_ranks import JobRanks
from gradwire.sense.step_timer import StepTimer
from gradwire.transport.traffic import Traffic
from gradwire.types import Bucket, Decision, RoundNorms, StepFacts


class Governor(Protocol):
    """`decision` is that of the step in progress."""

    decision: Decision

    def begin_step(self, bucket: Bucket) -> None:
        """The first bucket of a step is ready. May block until the other ranks' pulses have arrived."""
        ...

    def add_bucket(self, bucket: Bucket) -> None:
        """Another bucket of the step is ready. Never blocks."""
        ...

    def finish(self) -> None:
        """No step follows: report the steps that were not reported yet. Waits for no other rank."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GovernorContext:
    """What a governor reads, and where it reports."""

    rank: int
    world_size: int
    timer: StepTimer
    clock: Clock
    sink: Sink
    traffic: Traffic
    footprint: FootprintOf
    explain: Explain = unexplained
    # Samples rank 0's gradient for a controller.
    sampler: GradientSampler | None = None
    # The version of the plan in force, on which footprints depend.
    plan_version: Callable[[], int] = lambda: 0
    # What a step of the session is: a step, a round of local steps, or an exchange where it may be either.
    unit: str = "step"
    # Where ranks with which this one exchanges no gradients are in its job, too: they decide together.
    job_ranks: JobRanks | None = None

    @property
    def deciding(self) -> JobRanks:
        return self.job_ranks or JobRanks.of_group(self.rank, self.world_size)

    def lap(self, now: float, hops: int, loss: float) -> StepFacts | None:
        """Facts of the step that ends now, with the sample of its gradient where there is a sampler."""
        facts, sampler = self.timer.lap(now, hops, loss), self.sampler
        if sampler is None:
            return facts
        sample = sampler.take_step()
        return facts and replace(facts, sample=sample, adaptive=sampler.adaptive, rate=sampler.rate)

    def report_step(self, step: int, facts: StepFacts | None, level: Level, late: float = 0.0) -> None:
        """Emit what a step took; nothing where it was not measured."""
        if facts is not None:
            self.sink.emit(Stepped.of(self.clock.now(), step, facts, str(level), self.world_size, late))


class FixedGovernor:
    """A fixed level: every rank knows it. Only reports what the steps took."""

    def __init__(self, fixed: Fixed, context: GovernorContext) -> None:
        self._fixed = fixed
        self._context = context
        self._step = 0
        self.decision = fixed.at(0)

    def begin_step(self, bucket: Bucket) -> None:
        facts = self._context.timer.lap(self._context.clock.now(), 0)
        self._context.report_step(bucket.step - 1, facts, self.decision.level)
        self._context.traffic.step_ended(bucket.step - 1)
        self._step = bucket.step
        self.decision = self._fixed.at(bucket.step)

    def add_bucket(self, bucket: Bucket) -> None:
        """The level is fixed: nothing to do."""

    def finish(self) -> None:
        self._context.report_step(self._step, self._context.timer.finish(0), self.decision.level)
        self._context.traffic.finish(self._step)

    def close(self) -> None:
        """Nothing to close."""


def sendable(decision: Decision) -> Decision:
    """A controller's decision as the other ranks will read it. A level is sent as text; a share that the text rounds is
    rounded here too. ConfigError where the level is not valid."""
    level = Level.parse(str(decision.level), setting="controller")
    check_chain(level, setting="controller")
    return replace(decision, level=level)


def merge(facts: list[StepFacts], own: StepFacts) -> StepFacts:
    """One step of the whole job: the slowest compute, the longest step; bucket times and the loss are rank 0's."""
    seconds = max(fact.seconds for fact in facts)
    compute = max(fact.compute for fact in facts)
    return StepFacts(
        seconds=seconds,
        exposed=max(0.0, seconds - compute),
        busy=min(fact.busy for fact in facts),
        wire_bytes=max(fact.wire_bytes for fact in facts),
        hops=own.hops,
        work=max(fact.work for fact in facts),
        span=own.span,
        buckets=own.buckets,
        residual=max(fact.residual for fact in facts),
        loss=own.loss,
        slack=own.slack,
        sample=own.sample,
        adaptive=own.adaptive,
        rate=own.rate,
        steps=own.steps,
        divergence=mean_divergence(facts, own),
    )


def mean_divergence(facts: list[StepFacts], own: StepFacts) -> RoundNorms | None:
    """Of a round: the mean over ranks of how far each went."""
    norms = [fact.divergence.own for fact in facts if fact.divergence is not None]
    return own.divergence and replace(own.divergence, own=sum(norms) / len(norms))
