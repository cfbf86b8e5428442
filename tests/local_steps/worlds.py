"""Ranks of one process that train a small model with local steps, over loopback lanes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gradwire.clock import MonotonicClock
from gradwire.config import OuterConfig
from gradwire.events import Event, OuterStepped
from gradwire.level import Level
from gradwire.local_steps.buffer_average import BufferAverage
from gradwire.local_steps.divergence import DivergenceMeter
from gradwire.local_steps.global_weights import GlobalWeights
from gradwire.local_steps.outer_exchange import OuterParts
from gradwire.local_steps.outer_optimizer import make_outer
from gradwire.local_steps.outer_report import OuterReporter
from gradwire.local_steps.rounds import Rounds
from gradwire.types import Decision
from tests.runtime.sessions import Sessions


class Alone:
    """A process group of one rank: buffers have nobody to be averaged with."""

    def size(self) -> int:
        return 1


class LocalWorld:
    """`step(gradients)` is one plain SGD step (rate 1) on every rank, by each rank's own gradient."""

    def __init__(self, world_size: int, level: str, every: int, outer: OuterConfig | None = None) -> None:
        self.outer_steps: list[OuterStepped] = []
        self.modules = [self._module() for _ in range(world_size)]
        shapes = [[(name, tuple(one.shape)) for name, one in self.modules[0].named_parameters()]]
        self.sessions = Sessions(world_size, shapes)
        self.rounds = [
            self._rounds(rank, module, every, outer or OuterConfig()) for rank, module in enumerate(self.modules)
        ]
        for governor in self.sessions.governors:
            governor.decision = Decision(Level.parse(level), "the test's level")

    def _module(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Linear(128, 64)

    def _rounds(self, rank: int, module: nn.Module, every: int, outer: OuterConfig) -> Rounds:
        weights = GlobalWeights(module.named_parameters())
        buffers = BufferAverage(dict(module.named_buffers()), Alone(), 1.0)  # type: ignore[arg-type]
        made = make_outer(outer, None, weights.parameters)
        meter = DivergenceMeter(Alone(), 1.0)  # type: ignore[arg-type]
        reporter = OuterReporter(self, MonotonicClock())
        return Rounds(OuterParts(self.sessions.sessions[rank], weights, made, buffers, meter, reporter), every)

    def emit(self, event: Event) -> None:
        """A sink: of every rank's outer steps."""
        assert isinstance(event, OuterStepped)
        self.outer_steps.append(event)

    def step(self, gradient_of: Callable[[int], Tensor]) -> None:
        def one(rank: int) -> None:
            gradient = gradient_of(rank)
            with torch.no_grad():
                self.modules[rank].weight.sub_(gradient)  # type: ignore[operator, arg-type]
            self.rounds[rank].count_step()

        self.sessions.each(one)

    def weights(self) -> list[Tensor]:
        return [torch.cat([one.detach().flatten() for one in module.parameters()]) for module in self.modules]

    def close(self) -> None:
        self.sessions.close()
