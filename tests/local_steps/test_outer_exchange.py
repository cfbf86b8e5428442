"""Outer exchanges of one rank: what is waited for, what is kept, and what a failure leaves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwire.clock import VirtualClock
from gradwire.errors import LinkError
from gradwire.events import Event, OuterStepped
from gradwire.local_steps.buffer_average import BufferAverage
from gradwire.local_steps.divergence import DivergenceMeter
from gradwire.local_steps.global_weights import GlobalWeights
from gradwire.local_steps.outer_exchange import OuterParts
from gradwire.local_steps.outer_report import OuterReporter
from gradwire.local_steps.rounds import Rounds
from gradwire.types import Bucket
from tests.local_steps.worlds import Alone


class LateSession:
    """The mean is this rank's own pseudo-gradient; `settle` takes `seconds` from the last `synchronise` on."""

    def __init__(self, clock: VirtualClock, seconds: float) -> None:
        self.clock, self.seconds, self.step = clock, seconds, 0
        self.buckets: list[Bucket] = []
        self.sent_at = self.needed_at = 0.0
        self.error: Exception | None = None

    def synchronise(self, bucket: Bucket, buffer: Tensor, weights: object) -> None:
        self.buckets.append(bucket)
        self.sent_at = self.clock.now()

    def needed(self) -> None:
        self.needed_at = self.clock.now()

    def settle(self) -> None:
        self.clock.advance(max(0.0, self.sent_at + self.seconds - self.clock.now()))
        if self.error is not None:
            raise self.error


class OneRank:
    """Three layers, rounds of six steps, one second a step in which every weight falls by one."""

    def __init__(self, seconds: float, delay: int, count: int = 3, progress: float = 1.0) -> None:
        self.clock = VirtualClock()
        self.session = LateSession(self.clock, seconds)
        self.module = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
        nn.utils.vector_to_parameters(torch.zeros(60), self.module.parameters())
        self.events: list[OuterStepped] = []
        weights = GlobalWeights(self.module.named_parameters(), count=count)
        parts: Any = (self.session, weights, torch.optim.SGD(weights.parameters, lr=1.0))
        alone: Any = Alone()
        meters = BufferAverage({}, alone, 1.0), DivergenceMeter(alone, 1.0), OuterReporter(self, self.clock)
        self.rounds = Rounds(OuterParts(*parts, *meters, progress), 6, delay)

    def emit(self, event: Event) -> None:
        assert isinstance(event, OuterStepped)
        self.events.append(event)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.clock.advance(1.0)
            with torch.no_grad():
                for one in self.module.parameters():
                    one.sub_(1.0)
            self.rounds.count_step()

    def layers(self) -> list[float]:
        return [float(layer.weight[0, 0]) for layer in self.module]  # type: ignore[operator, index]


def test_training_waits_only_for_what_an_exchange_takes_beyond_its_delay() -> None:
    for seconds, delay, waited in ((2.0, 2, 0.0), (2.5, 2, 0.5), (1.0, 2, 0.0), (2.0, 0, 2.0)):
        one = OneRank(seconds, delay)
        one.train(12)
        assert [event.waited for event in one.events][:3] == [waited] * 3


def test_a_fragment_is_sent_at_its_step_and_applied_after_the_delay() -> None:
    one = OneRank(0.5, delay=1)
    one.train(7)
    assert [event.fragment for event in one.events] == [0, 1, 2]
    assert [event.at - 1000.0 for event in one.events] == [3.0, 5.0, 7.0]
    assert [event.local_steps for event in one.events] == [2, 4, 6]
    first, second, third = one.session.buckets
    assert [bucket.step for bucket in (first, second, third)] == [0, 1, 2]
    assert all(bucket.is_last and bucket.first == bucket.index for bucket in (first, second, third))


@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_a_share_of_the_progress_since_sending_is_kept(progress: float) -> None:
    """Of one rank the mean is its own, so without a delay nothing would change."""
    one = OneRank(0.0, delay=2, progress=progress)
    one.train(4)
    assert one.layers()[0] == -2.0 - 2.0 * progress
    assert one.layers()[1:] == [-4.0, -4.0]


def test_with_all_progress_kept_every_step_is_in_the_global_weights_once() -> None:
    one = OneRank(0.0, delay=2)
    one.train(23)
    one.rounds.end_round("the test ends it")
    assert one.layers() == [-23.0] * 3
    assert torch.equal(one.rounds.weights.buckets[0].flat, torch.full_like(one.rounds.weights.buckets[0].flat, -23.0))
    assert not one.rounds.pending


def test_only_the_fragment_that_arrived_is_stepped() -> None:
    one = OneRank(0.0, delay=1)
    one.train(3)
    flats = [float(bucket.flat[0]) for bucket in one.rounds.weights.buckets]
    assert flats == [-2.0, 0.0, 0.0]
    assert all(parameter.grad is None for parameter in one.rounds.weights.parameters)


def test_after_a_failure_nothing_is_in_flight() -> None:
    one = OneRank(0.0, delay=1)
    one.train(2)
    one.session.error = LinkError("a peer is gone")
    with pytest.raises(LinkError):
        one.train(1)
    assert one.rounds.exchange.flight is None
    assert not one.events
