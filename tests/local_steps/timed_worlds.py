"""Ranks of one process that train with rounds by time, each with its own clock, which moves by scripted steps only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gradwire.clock import VirtualClock
from gradwire.config import OuterConfig
from gradwire.events import Event, OuterStepped
from gradwire.level import Level
from gradwire.local_steps.buffer_average import BufferAverage
from gradwire.local_steps.divergence import DivergenceMeter
from gradwire.local_steps.global_weights import GlobalWeights
from gradwire.local_steps.outer_exchange import OuterParts
from gradwire.local_steps.outer_optimizer import make_outer
from gradwire.local_steps.outer_report import OuterReporter
from gradwire.local_steps.round_agreement import RoundAgreement
from gradwire.local_steps.timed_rounds import RoundTiming, TimedRounds
from gradwire.runtime.pipeline import Pipeline
from gradwire.transport.lanes.loopback import Loopback
from gradwire.types import Decision
from tests.local_steps.worlds import Alone
from tests.runtime.sessions import Sessions

SIZE = 24


class PatientAgreement(RoundAgreement):
    """Waits until all ranks are here, however long a busy machine takes: the scripted clocks stand still meanwhile."""

    def all_here(self, seconds: float | None) -> bool:
        return super().all_here(None)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(SIZE, SIZE, bias=False) for _ in range(3)))


def gradient(rank: int, step: int) -> Tensor:
    """Of all parameters, flat."""
    return 0.01 * torch.randn(3 * SIZE * SIZE, generator=torch.Generator().manual_seed(1000 * rank + step))


def flat(module: nn.Module) -> Tensor:
    return torch.cat([one.detach().flatten() for one in module.parameters()])


def duration(speed: float | Sequence[float], step: int) -> float:
    """Of a rank's step: always the same, or from a script that is repeated."""
    return speed if isinstance(speed, int | float) else speed[step % len(speed)]


@dataclass
class Rank:
    """One rank: plain SGD steps (rate 1) by its own gradients. `seen` are the global weights after each exchange."""

    rank: int
    speed: float | Sequence[float]
    rounds: TimedRounds
    module: nn.Module
    clock: VirtualClock
    events: list[OuterStepped]
    seen: list[Tensor] = field(default_factory=list)

    def step(self, made: bool = True, samples: int = 0) -> None:
        self.clock.advance(duration(self.speed, self.rounds.steps))
        if made:
            start = flat(self.module) - gradient(self.rank, self.rounds.steps)
            nn.utils.vector_to_parameters(start, self.module.parameters())
        if samples:
            self.rounds.count_samples(samples)
        before = len(self.events)
        self.rounds.count_step(made)
        self._look(before)

    def finish(self) -> None:
        before = len(self.events)
        self.rounds.finish("the test ends it")
        self._look(before)

    def pass_round(self) -> None:
        before = len(self.events)
        self.rounds.pass_round()
        self._look(before)

    def land(self) -> None:
        before = len(self.events)
        self.rounds.land()
        self._look(before)

    def _look(self, before: int) -> None:
        if len(self.events) > before:
            self.seen.append(torch.cat([one.flat.clone() for one in self.rounds.weights.buckets]))


class TimedWorld:
    """`each` runs a function for every rank, on threads of their own."""

    def __init__(self, speeds: Sequence[float | Sequence[float]], level: str = "off", **settings: Any) -> None:
        self.settings = {"seconds": 10.0, "fragments": 1, "delay": 0, "outer": OuterConfig(), **settings}
        self.modules = [net() for _ in speeds]
        shapes = [[(name, tuple(one.shape)) for name, one in self.modules[0].named_parameters()]]
        self.sessions = Sessions(len(speeds), shapes)
        self._meetings = Loopback(len(speeds), timeout=60.0)
        self.ranks = [self._rank(rank, speed) for rank, speed in enumerate(speeds)]
        for governor in self.sessions.governors:
            governor.decision = Decision(Level.parse(level), "the test's level")

    def _rank(self, rank: int, speed: float | Sequence[float]) -> Rank:
        settings, clock, events = self.settings, VirtualClock(), list[OuterStepped]()

        class Sink:
            def emit(self, event: Event) -> None:
                assert isinstance(event, OuterStepped)
                events.append(event)

        weights = GlobalWeights(self.modules[rank].named_parameters(), count=settings["fragments"])
        alone: Any = Alone()
        parts = OuterParts(
            self.sessions.sessions[rank],
            weights,
            make_outer(settings["outer"], None, weights.parameters),
            BufferAverage({}, alone, 1.0),
            DivergenceMeter(alone, 1.0),
            OuterReporter(Sink(), clock),
        )
        pipeline = Pipeline([self._meetings.lane(rank)], lambda timing: None)
        agreement = PatientAgreement(pipeline, rank, len(self.modules))
        rounds = TimedRounds(parts, RoundTiming(settings["seconds"], 0.1), agreement, settings["delay"])
        return Rank(rank, speed, rounds, self.modules[rank], clock, events)

    def each(self, work: Callable[[Rank], None]) -> None:
        self.sessions.each(lambda rank: work(self.ranks[rank]))

    def train(self, exchanges: int) -> None:
        """Every rank steps until so many exchanges were made."""

        def work(one: Rank) -> None:
            while one.rounds.session.step < exchanges:
                one.step()
            one.land()

        self.each(work)

    def close(self) -> None:
        for one in self.ranks:
            one.rounds.agreement.close()
        self.sessions.close()
