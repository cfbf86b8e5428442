"""Rounds: what happens after every step of the inner optimizer, and at the end of a round.

    1. this rank's pseudo-gradient (global weights - local weights), bucket by bucket into the session, which replaces
       it by the mean over all ranks as it does with gradients: level, residuals, exchange and lanes
    2. the outer optimizer steps the global weights by the mean
    3. the local weights become the global ones

All ranks restore the same bytes in 1 and have the same outer state, so they begin the next round with equal weights.
A step of the session is a round. Everything runs on the training thread, inside the optimizer's `step`. After each
outer step `local_steps/outer_report.py` emits what it did.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch.optim import Optimizer

from gradwire.errors import ConfigError
from gradwire.local_steps.buffer_average import BufferAverage
from gradwire.local_steps.divergence import DivergenceMeter
from gradwire.local_steps.global_weights import FlatWeights, GlobalWeights
from gradwire.local_steps.outer_report import OuterFacts, OuterReporter
from gradwire.runtime.session import Session


@dataclass(frozen=True, slots=True)
class RoundParts:
    """What rounds are built from."""

    session: Session
    weights: GlobalWeights
    outer: Optimizer
    buffers: BufferAverage
    divergence: DivergenceMeter
    reporter: OuterReporter


class Rounds:
    """`steps` counts this rank's steps, `step_in_round` those since the last end of a round."""

    def __init__(self, parts: RoundParts, sync_every: int) -> None:
        self._parts = parts
        self.weights, self.outer, self.buffers = parts.weights, parts.outer, parts.buffers
        self.sync_every = sync_every
        self.steps = self.step_in_round = 0
        self._swapped = False

    def count_step(self) -> None:
        """A step of the inner optimizer was made, or skipped by a loss scaler."""
        if self._swapped:
            raise ConfigError(
                "global_weights: the optimizer made a step inside `with handle.global_weights()`, where the model has "
                "other weights than training; only evaluate there"
            )
        self.steps += 1
        self.step_in_round += 1
        if self.step_in_round >= self.sync_every:
            self.end_round(f"all {self.sync_every} local steps were made")

    def end_round(self, reason: str) -> None:
        """End the round now, for this reason. Every rank calls this after the same step."""
        self.buffers.begin()
        waited = self._exchange()  # 1
        self.buffers.finish()
        before = self.weights.flat_copies()
        self.outer.step()  # 2
        self.weights.reset_local()  # 3
        facts = OuterFacts(self.step_in_round, self.sync_every, reason, waited)
        outer_norm = self.weights.distance(before)
        self._parts.reporter.emit(self._parts.session.step - 1, facts, self._parts.divergence.finish(), outer_norm)
        self.step_in_round = 0

    def _exchange(self) -> float:
        """Seconds from the last pseudo-gradient to the last mean."""
        session, measured = self._parts.session, list(self.weights.at(self._parts.session.step))
        self._parts.divergence.begin([(bucket.index, one.measure()) for one, bucket in measured])
        for one, bucket in measured:
            if bucket.is_last:
                session.step += 1
            session.synchronise(bucket, one.gradient, FlatWeights(one.flat))
        began = self._parts.reporter.clock.now()
        session.settle()
        return self._parts.reporter.clock.now() - began

    @contextmanager
    def global_weights(self) -> Iterator[None]:
        """The model has the weights and buffers of the last end of a round inside."""
        if self._swapped:
            raise ConfigError("global_weights: the model has its global weights already; leave the outer block first")
        self._swapped = True
        try:
            with self.weights.swapped_in(), self.buffers.swapped_in():
                yield
        finally:
            self._swapped = False
