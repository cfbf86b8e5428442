"""Outer exchange: sends pseudo-gradients, and applies their mean to the global and to the local weights.

    send    1. this rank's pseudo-gradient (global weights - local weights) of some buckets, weighted where ranks made
               different numbers of steps
            2. into the session, which replaces it by the mean over all ranks as it does with gradients: level,
               residuals, exchange and lanes. Training may go on meanwhile: nothing here reads the local weights again
    apply   3. wait for the mean
            4. the outer optimizer steps the global weights of these buckets by it
            5. local weights = global weights + progress x (local weights now - local weights at 1)

With `progress` 1 a rank keeps all of its own steps since 1, and its next pseudo-gradient has them: each step of each
rank counts once. Applied at once, the local weights become the global ones to the bit. All ranks restore the same bytes
in 3 and have the same outer state, so global weights are the same on all ranks.

While a step of the inner optimizer is being computed, another thread may send weights that were held before that step,
or nothing. 5 is then left to `catch_up`, which the training thread calls when the step has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.optim import Optimizer

from gradwire.local_steps.buffer_average import BufferAverage
from gradwire.local_steps.divergence import Divergence, DivergenceMeter
from gradwire.local_steps.global_weights import FlatWeights, GlobalWeights, WeightBucket
from gradwire.local_steps.outer_report import OuterFacts, OuterReporter
from gradwire.runtime.session import Session


@dataclass(frozen=True, slots=True)
class OuterParts:
    """What outer exchanges use. `progress` is the share of a rank's own progress since sending that it keeps."""

    session: Session
    weights: GlobalWeights
    outer: Optimizer
    buffers: BufferAverage
    divergence: DivergenceMeter
    reporter: OuterReporter
    progress: float = 1.0


@dataclass(slots=True)
class Flight:
    """What was sent and is not applied yet, at a step of the session. `sent` are the local weights of each bucket when
    it was sent, None where training does not go on meanwhile. `arrived` is None until the mean is here."""

    buckets: Sequence[WeightBucket]
    facts: OuterFacts
    step: int
    with_buffers: bool
    sent: Sequence[Tensor | None]
    arrived: Divergence | None = None
    # The local weights belong to a step that is being computed.
    in_step: bool = False


class OuterExchange:
    """At most one exchange is in flight: `send`, then `apply`, on all ranks after the same steps. `found` is how
    differently the ranks had moved at the last one that was applied."""

    def __init__(self, parts: OuterParts) -> None:
        self._parts = parts
        self.flight: Flight | None = None
        self.found: Divergence | None = None
        self._shifts: dict[int, Tensor] = {}

    def send(self, buckets: Sequence[WeightBucket], facts: OuterFacts, with_buffers: bool) -> None:
        """`facts.delay` is after how many local steps the result is to be applied. `with_buffers`: the model's buffers
        are averaged too."""
        self.send_weighted([(one, 1.0) for one in buckets], facts, with_buffers)

    def send_weighted(
        self,
        scaled: Sequence[tuple[WeightBucket, float]],
        facts: OuterFacts,
        with_buffers: bool,
        held: dict[int, Tensor] | None = None,
    ) -> None:
        """This rank's pseudo-gradient of each bucket is multiplied by the factor beside it; over all ranks the factors
        of a bucket have the mean 1. Buffers are weighted as the last bucket is. `held` is given while a step is being
        computed: local weights by bucket, which are taken out of it; for a bucket that it lacks nothing is sent."""
        parts, session = self._parts, self._parts.session
        buckets = [one for one, _ in scaled]
        if with_buffers:
            parts.buffers.begin(scaled[-1][1])
        sent = [_kept(one, facts.delay, held) for one in buckets]
        measured = [
            one.measure() if held is None else one.measure_from(_given(values))
            for one, values in zip(buckets, sent, strict=True)
        ]
        parts.divergence.begin([(one.bucket.index, found) for one, found in zip(buckets, measured, strict=True)])  # 1
        for one, factor in scaled:
            one.scale(factor)
        self.flight = Flight(buckets, facts, session.step, with_buffers, sent, in_step=held is not None)
        first, last = buckets[0].bucket.index, buckets[-1].bucket.index
        for one in buckets:  # 2
            index = one.bucket.index
            bucket = replace(one.bucket, step=self.flight.step, is_last=index == last, first=first)
            if bucket.is_last:
                session.step += 1
            session.synchronise(bucket, one.gradient, FlatWeights(one.flat))

    def arrive(self) -> None:
        """Wait until the mean of what is in flight is here. Nothing to do if it is, and if nothing is in flight."""
        parts, flight = self._parts, self.flight
        if flight is None or flight.arrived is not None:
            return
        began = parts.reporter.clock.now()
        if flight.facts.delay:
            parts.session.needed()
        try:
            parts.session.settle()
            if flight.with_buffers:
                parts.buffers.arrive()
            flight.arrived = parts.divergence.finish()
        except BaseException:
            self.flight = None  # it failed: there is nothing to wait for any more
            raise
        flight.facts = replace(flight.facts, waited=parts.reporter.clock.now() - began)

    def apply(self, delay: int = 0) -> None:
        """Apply what is in flight, `delay` local steps after it was sent."""
        self.arrive()  # 3
        parts, flight = self._parts, self.flight
        if flight is None or flight.arrived is None:
            return
        before = [one.flat.clone() for one in flight.buckets]
        parts.outer.step()  # 4
        changes = [old.sub_(one.flat) for one, old in zip(flight.buckets, before, strict=True)]
        if flight.in_step:
            self._leave(flight)
        else:
            for one, sent in zip(flight.buckets, flight.sent, strict=True):  # 5
                one.follow_global(sent, parts.progress)
            if flight.with_buffers:
                parts.buffers.apply(parts.progress)
        self.flight, self.found = None, flight.arrived
        parts.reporter.emit(flight.step, replace(flight.facts, delay=delay), flight.arrived, _norm(changes))

    def _leave(self, flight: Flight) -> None:
        """What `catch_up` has to do. Buffers stay this rank's own until it sends them again."""
        for one, sent in zip(flight.buckets, flight.sent, strict=True):
            index, moved = one.bucket.index, one.flat - _given(sent)
            self._shifts[index] = self._shifts[index] + moved if index in self._shifts else moved
            one.drop_gradients()
        if flight.with_buffers:
            self._parts.buffers.keep()

    def catch_up(self) -> None:
        """A step has ended during which weights were sent: 5, with all of this rank's progress since."""
        shifts, self._shifts = self._shifts, {}
        for one in self._parts.weights.buckets:
            if one.bucket.index in shifts:
                one.move_local(shifts[one.bucket.index])

    def drop(self) -> None:
        """Forget what is in flight, when it has arrived. Every rank calls this at the same point."""
        self.arrive()
        if self.flight is not None:
            for one in self.flight.buckets:
                one.drop_gradients()
        self.flight, self.found, self._shifts = None, None, {}


def _kept(one: WeightBucket, delay: int, held: dict[int, Tensor] | None) -> Tensor | None:
    """The local weights that are sent; None where they are not needed again. What is not held is as the global ones."""
    if held is not None:
        found = held.pop(one.bucket.index, None)
        return one.flat.clone() if found is None else found
    return one.local_copy() if delay else None


def _given(values: Tensor | None) -> Tensor:
    assert values is not None
    return values


def _norm(parts: Sequence[Tensor]) -> float:
    return float(torch.stack([torch.linalg.vector_norm(one).float().cpu() for one in parts]).norm())
