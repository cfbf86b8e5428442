"""What every lane must do, run for lanes within one process. The training tests cover lanes over gloo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch

from gradwire.clock import MonotonicClock
from gradwire.errors import LinkError
from gradwire.transport.lanes.base import AllGather, AllReduce, AllToAll, Broadcast, Lane, Losses
from gradwire.transport.lanes.loopback import Loopback
from gradwire.transport.lanes.unfinished_sends import UnfinishedSends
from gradwire.transport.lanes.wire import WireLane
from gradwire.transport.wires.ltp import Endpoint, LtpConfig

WORLD = 3
SECRET = b"0123456789abcdef0123456789abcdef"


@contextmanager
def loopback(timeout: float) -> Iterator[list[Lane]]:
    world = Loopback(WORLD, timeout=timeout)
    yield [world.lane(rank) for rank in range(WORLD)]


@contextmanager
def ltp(timeout: float) -> Iterator[list[Lane]]:
    with ExitStack() as stack:
        ends = [stack.enter_context(Endpoint(rank, SECRET, LtpConfig())) for rank in range(WORLD)]
        addresses = {end.rank: ("127.0.0.1", end.port) for end in ends}
        together(lambda rank: ends[rank].connect({r: w for r, w in addresses.items() if r != rank}))
        yield [WireLane(end, WORLD, 1, UnfinishedSends(timeout), MonotonicClock()) for end in ends]


def together(job: Callable[[int], Any]) -> list[Any]:
    """Every rank's job in a thread; results or errors, by rank."""
    with ThreadPoolExecutor(WORLD) as pool:
        futures = [pool.submit(job, rank) for rank in range(WORLD)]
        return [future.exception(60) or future.result() for future in futures]


@pytest.fixture(params=[loopback, ltp])
def lanes(request: pytest.FixtureRequest) -> Iterator[list[Lane]]:
    with request.param(20.0) as made:
        yield made


@pytest.mark.parametrize("size", [1, 7, 300_000])
def test_parts_go_to_their_ranks(lanes: list[Lane], size: int) -> None:
    sent = [torch.randint(0, 255, (WORLD, size), dtype=torch.uint8) for _ in range(WORLD)]
    received = [torch.empty_like(part) for part in sent]
    timings = together(lambda rank: lanes[rank].start(AllToAll(sent[rank], received[rank])).wait())
    for rank in range(WORLD):
        assert torch.equal(received[rank], torch.stack([sent[other][rank] for other in range(WORLD)]))
        assert timings[rank].kind == "AllToAll"
        assert timings[rank].finished >= timings[rank].started


@pytest.mark.parametrize("size", [1, 7, 300_000])
def test_a_gather_reaches_every_rank(lanes: list[Lane], size: int) -> None:
    sent = [torch.randint(0, 255, (size,), dtype=torch.uint8) for _ in range(WORLD)]
    received = [torch.empty(WORLD, size, dtype=torch.uint8) for _ in range(WORLD)]
    together(lambda rank: lanes[rank].start(AllGather(sent[rank], received[rank])).wait())
    for rank in range(WORLD):
        assert torch.equal(received[rank], torch.stack(sent))


@pytest.mark.parametrize("size", [1, 7, 300_000])
def test_a_broadcast_copies_rank_0s_bytes_to_every_rank(lanes: list[Lane], size: int) -> None:
    given = [torch.randint(0, 255, (size,), dtype=torch.uint8) for _ in range(WORLD)]
    expected = given[0].clone()
    timings = together(lambda rank: lanes[rank].start(Broadcast(given[rank])).wait())
    assert all(torch.equal(own, expected) for own in given)
    assert [timing.kind for timing in timings] == ["Broadcast"] * WORLD


@pytest.mark.parametrize("numel", [1, 100, 100_003])
def test_sums_and_maxima_are_the_same_bits_everywhere(lanes: list[Lane], numel: int) -> None:
    given = [torch.randn(numel) for _ in range(WORLD)]
    sums = [part.clone() for part in given]
    largest = [part.clone().double() for part in given]

    def work(rank: int) -> None:
        first = lanes[rank].start(AllReduce(sums[rank]))
        second = lanes[rank].start(AllReduce(largest[rank], maximum=True))
        first.wait()
        second.wait()

    assert together(work) == [None] * WORLD
    torch.testing.assert_close(sums[0], torch.stack(given).sum(0))
    assert torch.equal(largest[0], torch.stack(given).amax(0).double())
    for rank in range(1, WORLD):
        assert torch.equal(sums[rank], sums[0])
        assert torch.equal(largest[rank], largest[0])


def test_concurrent_operations_are_not_mixed_up(lanes: list[Lane]) -> None:
    def work(rank: int) -> list[torch.Tensor]:
        buffers = [torch.empty(WORLD, 5000, dtype=torch.uint8) for _ in range(8)]
        sends = [torch.full((5000,), 10 * rank + n, dtype=torch.uint8) for n in range(8)]
        pending = [lanes[rank].start(AllGather(send, buffer)) for send, buffer in zip(sends, buffers, strict=True)]
        for one in pending:
            one.wait()
        return buffers

    for buffers in together(work):
        for number, buffer in enumerate(buffers):
            assert [int(row[0]) for row in buffer] == [10 * rank + number for rank in range(WORLD)]


def test_a_tolerant_exchange_accounts_for_every_byte(lanes: list[Lane]) -> None:
    size, critical = 400_000, 1000
    sent = [torch.randint(1, 255, (WORLD, size), dtype=torch.uint8) for _ in range(WORLD)]
    received = [torch.empty_like(part) for part in sent]
    losses = [Losses(0.9, (critical,) * WORLD) for _ in range(WORLD)]

    def work(rank: int) -> Any:
        lanes[rank].start(AllToAll(sent[rank], received[rank], losses[rank])).wait()
        return losses[rank].undelivered()

    undelivered = together(work)
    for receiver in range(WORLD):
        for sender in range(WORLD):
            missing = losses[receiver].missing.get(sender, ())
            assert undelivered[sender].get(receiver, ()) == missing
            expected = sent[sender][receiver].clone()
            for offset, length in missing:
                assert offset >= critical
                expected[offset : offset + length] = 0
            assert torch.equal(received[receiver][sender], expected)


@pytest.mark.parametrize("make", [loopback, ltp])
def test_a_rank_that_does_not_take_part_is_a_link_error(make: Any) -> None:
    with make(0.5) as lanes:

        def work(rank: int) -> None:
            if rank != 2:
                send = torch.zeros(100, dtype=torch.uint8)
                lanes[rank].start(AllGather(send, torch.empty(WORLD, 100, dtype=torch.uint8))).wait()

        results = together(work)
        assert isinstance(results[0], LinkError)
        assert isinstance(results[1], LinkError)
        assert results[2] is None
