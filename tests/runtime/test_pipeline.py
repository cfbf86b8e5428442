"""Pipeline: order on every lane, overlap between exchanges, one failure for all, threads that end."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from gradwire.errors import LinkError
from gradwire.runtime.pipeline import Pipeline
from gradwire.transport.lanes.base import AllReduce, Op, Pending, Timing
from gradwire.transport.lanes.loopback import Loopback


class Results:
    """Collects outcomes and waits for a number of them."""

    def __init__(self, expected: int) -> None:
        self._left = threading.Semaphore(0)
        self._expected = expected
        self.outcomes: list[BaseException | None] = []

    def __call__(self, error: BaseException | None) -> None:
        self.outcomes.append(error)
        self._left.release()

    def wait(self) -> list[BaseException | None]:
        for _ in range(self._expected):
            assert self._left.acquire(timeout=10)
        return self.outcomes


def sums(tensor: torch.Tensor, times: int) -> Iterator[Op]:
    for _ in range(times):
        yield AllReduce(tensor)


def pipeline_of(world: list[Loopback], rank: int, timings: list[Timing]) -> Pipeline:
    return Pipeline([lane.lane(rank) for lane in world], timings.append)


def test_exchanges_of_different_length_share_the_lanes_in_order() -> None:
    world = [Loopback(2), Loopback(2), Loopback(2)]
    timings: list[Timing] = []
    pipelines = [pipeline_of(world, rank, timings) for rank in range(2)]
    tensors = [[torch.ones(1) for _ in range(6)] for _ in range(2)]
    results = Results(12)
    for pipeline, own in zip(pipelines, tensors, strict=True):
        for index, tensor in enumerate(own):
            pipeline.submit(sums(tensor, index % 4), results)
    assert results.wait() == [None] * 12
    assert [t.item() for t in tensors[0]] == [2.0 ** (i % 4) for i in range(6)]
    assert [t.item() for t in tensors[1]] == [t.item() for t in tensors[0]]
    assert len(timings) == 2 * sum(i % 4 for i in range(6))
    for pipeline in pipelines:
        pipeline.close()


def test_the_first_failure_fails_everything_after_it() -> None:
    cut = LinkError("cut")
    world = [Loopback(2, faults={(1, 1): cut})]
    pipelines = [pipeline_of(world, rank, []) for rank in range(2)]
    results = [Results(3), Results(3)]
    for pipeline, result in zip(pipelines, results, strict=True):
        for _ in range(3):
            pipeline.submit(sums(torch.ones(1), 1), result)
    for result in results:
        assert result.wait() == [None, cut, cut]
    for pipeline in pipelines:
        pipeline.close()


def test_an_error_while_encoding_is_delivered() -> None:
    def broken() -> Iterator[Op]:
        raise MemoryError("too big")
        yield AllReduce(torch.ones(1))

    pipeline = pipeline_of([Loopback(1)], 0, [])
    results = Results(2)
    pipeline.submit(broken(), results)
    pipeline.submit(sums(torch.ones(1), 1), results)
    assert [type(outcome) for outcome in results.wait()] == [MemoryError, MemoryError]
    pipeline.close()


def test_run_waits_for_the_end_of_an_exchange_and_raises_its_error() -> None:
    cut, timings = LinkError("cut"), list[Timing]()
    pipeline = pipeline_of([Loopback(1, faults={(0, 2): cut})], 0, [])
    tensor = torch.ones(1)
    pipeline.run(sums(tensor, 1), timings.append)
    assert len(timings) == 1
    pipeline.run(sums(tensor, 0))
    pipeline.run(sums(tensor, 1))
    with pytest.raises(LinkError, match="cut"):
        pipeline.run(sums(tensor, 1))
    pipeline.close()


def test_closing_joins_the_threads() -> None:
    before = threading.active_count()
    pipeline = pipeline_of([Loopback(1), Loopback(1)], 0, [])
    assert threading.active_count() == before + 3
    pipeline.close()
    assert threading.active_count() == before


def test_a_peer_that_never_starts_the_operation_is_a_link_error() -> None:
    pipeline = Pipeline([Loopback(2, timeout=0.05).lane(0)], lambda timing: None)
    results = Results(1)
    pipeline.submit(sums(torch.ones(1), 1), results)
    (outcome,) = results.wait()
    assert isinstance(outcome, LinkError)
    assert "ranks [1] did not start the operation" in str(outcome)
    with pytest.raises(StopIteration):
        next(sums(torch.ones(1), 0))
    pipeline.close()


def test_a_callback_that_raises_gets_its_error_back_and_the_station_goes_on() -> None:
    pipeline = pipeline_of([Loopback(1)], 0, [])
    outcomes: list[BaseException | None] = []

    def raises(error: BaseException | None) -> None:
        outcomes.append(error)
        raise ValueError("in the callback")

    pipeline.submit(sums(torch.ones(1), 1), raises)
    later = Results(2)
    pipeline.submit(sums(torch.ones(1), 1), later)
    pipeline.submit(sums(torch.ones(1), 0), later)
    assert later.wait() == [None, None]
    assert outcomes[0] is None
    assert [str(error) for error in outcomes[1:]] == ["in the callback"]
    pipeline.close()


class FailsToCloseOnce:
    """A lane that closes at the second attempt."""

    def __init__(self) -> None:
        self.attempts = 0

    def start(self, op: Op) -> Pending:
        raise AssertionError("nothing is sent here")

    def close(self) -> None:
        self.attempts += 1
        if self.attempts == 1:
            raise LinkError("not yet")


def test_every_lane_is_closed_when_one_cannot_be_and_closing_can_be_tried_again() -> None:
    lanes = [FailsToCloseOnce(), FailsToCloseOnce()]
    lanes[1].attempts = 1
    pipeline = Pipeline(lanes, lambda timing: None)
    with pytest.raises(LinkError, match="not yet"):
        pipeline.close()
    assert [lane.attempts for lane in lanes] == [1, 2]
    pipeline.close()
    assert [lane.attempts for lane in lanes] == [2, 2]


def test_a_pipeline_that_waits_for_a_peer_can_be_closed_when_the_peer_has_started() -> None:
    world = Loopback(2)
    pipeline, results = Pipeline([world.lane(0)], lambda timing: None), Results(1)
    pipeline.submit(sums(torch.ones(1), 1), results)
    with pytest.raises(LinkError, match="still wait for a peer"):
        pipeline.close(timeout=0.05)
    world.lane(1).start(AllReduce(torch.ones(1))).wait()
    assert results.wait() == [None]
    pipeline.close()
