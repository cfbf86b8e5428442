"""Dense sums: exact, in rank order, with the bytes and latencies of their footprint."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from gradwire.exchange.chunk import Chunk
from gradwire.exchange.dense_sum import EXTRA_BYTES, gathers_whole, mean, parts
from gradwire.exchange.select import footprint
from gradwire.level import Level
from gradwire.transport.lanes.base import Op
from gradwire.types import Bucket, ParameterSlice
from tests.exchange.ranks import Rank, run
from tests.runtime.sessions import Sessions


def expected_mean(gradients: list[Tensor]) -> Tensor:
    """What every rank must hold, to the bit: scaled by the reciprocal, then added rank by rank."""
    scaled = [gradient * (1.0 / len(gradients)) for gradient in gradients]
    total = scaled[0].clone()
    for other in scaled[1:]:
        total += other
    return total


def drawn(world: int, numel: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(numel, generator=torch.Generator().manual_seed(rank)).to(dtype) for rank in range(world)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("numel", [1, 1000, 30_000, 100_003])
@pytest.mark.parametrize("world", [2, 3, 5])
def test_the_mean_is_that_of_a_sum_in_rank_order_to_the_bit(world: int, numel: int, dtype: torch.dtype) -> None:
    given = drawn(world, numel, dtype)
    ranks = [Rank(rank, world, numel) for rank in range(world)]
    results = run(ranks, given, lambda chunk: mean(chunk.gradient, world, chunk.lease))
    for result in results:
        assert torch.equal(result, expected_mean(given))


@pytest.mark.parametrize("world", [2, 4, 8])
def test_a_gather_is_used_as_long_as_it_sends_little_more_than_shards(world: int) -> None:
    for nbytes in (1024, 16 * 1024, 64 * 1024, 1024 * 1024):
        gather, shards = nbytes * (world - 1), 2 * nbytes * (world - 1) / world
        assert gathers_whole(nbytes, world) == (gather - shards <= EXTRA_BYTES)


def test_parts_divide_evenly_into_shards_but_for_the_last() -> None:
    values = torch.zeros(3_000_001)
    cut = parts(values, 3, 4.0)
    assert sum(part.numel() for part in cut) == values.numel()
    assert len(cut) == 3
    assert all(part.numel() % 3 == 0 for part in cut[:-1])
    assert parts(torch.zeros(0), 3, 4.0) == ()


def counted(numel: int, world: int) -> tuple[int, int]:
    """Bytes and operations that a rank really used for a bucket that is sent uncompressed."""
    ops: list[Op] = []

    def noted(chunk: Chunk) -> Iterator[Op]:
        for op in mean(chunk.gradient, world, chunk.lease):
            if chunk.rank == 0:
                ops.append(op)
            yield op

    run([Rank(rank, world, numel) for rank in range(world)], drawn(world, numel), noted)
    return sum(op.wire_bytes(world) for op in ops), len(ops)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize("numel", [3136, 123_000, 4_002_000])
def test_the_footprint_has_the_bytes_and_latencies_of_the_exchange(numel: int, world: int) -> None:
    slices = (ParameterSlice("w", 0, (numel,), numel),)
    size = footprint(Level(), Bucket(0, 0, numel, 4, slices, True), world, own_wire=True)
    nbytes, operations = counted(numel, world)
    assert size.hops == operations
    assert size.wire_bytes == pytest.approx(nbytes, rel=0.001, abs=8 * world * world)


SHAPES = [[("a", (500, 300)), ("b", (500,))], [("c", (70_001,))]]


def test_off_over_a_gradwire_wire_is_exact_and_sends_the_residual_once() -> None:
    """And never touches the process group's all-reduce."""
    world = Sessions(3, SHAPES, own_wire=True)
    given = [[torch.randn(150_500), torch.randn(70_001)] for _ in range(3)]
    try:
        world.step("topk:0.05", given)
        waiting = [[feedback.state_dict()["residuals"] for feedback in world.feedbacks]][0]
        results = world.step("off", given)
        again = world.step("off", given)
    finally:
        world.close()
    owed = [[torch.cat([w["a"], w["b"]]), w["c"]] for w in waiting]
    for bucket in range(2):
        with_waiting = [own[bucket] + late[bucket] for own, late in zip(given, owed, strict=True)]
        for rank in range(3):
            assert torch.equal(results[rank][bucket], expected_mean(with_waiting))
            assert torch.equal(again[rank][bucket], expected_mean([own[bucket] for own in given]))
    wire = [event for event in world.events if type(event).__name__ == "Synchronised" and event.level == "off"]
    assert sum(event.wire_bytes for event in wire) == pytest.approx(6 * 2 * 2 / 3 * 4 * 220_501, rel=0.01)
