"""Low-rank exchange: buckets in one group restore what each would restore alone, with the operations of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from gradwire.compress.lowrank import LowRank
from gradwire.exchange.buffer_pool import BufferLease
from gradwire.exchange.chunk import Chunk
from gradwire.exchange.factor_sum import FactorSum
from gradwire.exchange.lowrank import FUSED_BYTES, FactorGroup, ends_group
from gradwire.exchange.select import FootprintTable
from gradwire.level import Level
from gradwire.transport.lanes.base import Op
from gradwire.types import Bucket, ParameterSlice
from tests.exchange.ranks import Rank, alone, run

LEVEL = Level.parse("lowrank:4")
Shapes = Sequence[tuple[int, ...]]
# Buckets of matrices and vectors; the last one has no matrix that would shrink.
BUCKETS: list[Shapes] = [[(64, 48), (64,)], [(300, 200), (100, 100), (300,)], [(40,), (4, 5)]]


def slices_of(shapes: Shapes, name: str = "") -> tuple[ParameterSlice, ...]:
    slices, offset = [], 0
    for number, shape in enumerate(shapes):
        slices.append(ParameterSlice(f"{name}{number}", offset, shape, torch.Size(shape).numel()))
        offset += slices[-1].numel
    return tuple(slices)


SLICES = [slices_of(shapes, f"bucket {index} ") for index, shapes in enumerate(BUCKETS)]
NUMELS = [sum(part.numel for part in slices) for slices in SLICES]


def drawn(world: int, numel: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(numel, generator=generator) * (1 + rank) for rank in range(world)]


class Together:
    """All buckets as one group, with residuals and warm starts between steps. A rank's flat gradient has them all."""

    def __init__(self, world: int, level: Level = LEVEL) -> None:
        self.ranks = [Rank(rank, world, sum(NUMELS)) for rank in range(world)]
        self.factors = [LowRank(level) for _ in range(world)]
        self.operations = self.bytes = 0

    def step(self, gradients: list[Tensor]) -> list[Tensor]:
        self.operations = self.bytes = 0
        return run(self.ranks, gradients, self._exchange)

    def _exchange(self, whole: Chunk) -> Iterator[Op]:
        factors, rank = self.factors[whole.rank], self.ranks[whole.rank]
        group = FactorGroup(factors, whole.world_size, BufferLease(rank.pool, whole.gradient.device))
        gradients, residuals = whole.gradient.split(NUMELS), whole.residual.split(NUMELS)
        for gradient, residual, slices in zip(gradients, residuals, SLICES, strict=True):
            chunk = Chunk(
                whole.span, gradient, residual, whole.owner, whole.rank, whole.world_size, whole.report, whole.lease
            )
            yield from group.add(chunk, factors.layout(slices))
        for op in group.exchange():
            if whole.rank == 0:
                self.operations += 1
                self.bytes += op.wire_bytes(whole.world_size)
            yield op


class Apart:
    """Each bucket as a group of its own."""

    def __init__(self, world: int) -> None:
        self.ranks = [[Rank(rank, world, numel) for rank in range(world)] for numel in NUMELS]
        self.factors = [LowRank(LEVEL) for _ in range(world)]

    def step(self, gradients: list[Tensor]) -> list[Tensor]:
        parts = [gradient.split(NUMELS) for gradient in gradients]
        results = []
        for index, slices in enumerate(SLICES):
            layout = self.factors[0].layout(slices)
            own = [part[index] for part in parts]
            make = lambda chunk, layout=layout: alone(chunk, self.factors[chunk.rank], layout)  # noqa: E731
            results.append(run(self.ranks[index], own, make))
        return [torch.cat([result[rank] for result in results]) for rank in range(len(gradients))]


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 3, 5])
def test_a_group_restores_and_keeps_what_its_buckets_would_alone_to_the_bit(world: int) -> None:
    together, apart = Together(world), Apart(world)
    for step in range(3):
        gradients = drawn(world, sum(NUMELS), step)
        fused, single = together.step(gradients), apart.step(gradients)
        assert all(torch.equal(result, single[0]) for result in fused)
        for rank in range(world):
            assert torch.equal(together.ranks[rank].residual, torch.cat([own[rank].residual for own in apart.ranks]))


@pytest.mark.parametrize("ranks", [2, 3, 6])
@pytest.mark.parametrize(
    "level", ["lowrank:4", "lowrank:4+fp16", "lowrank:4+int8", "lowrank:64+int8", "lowrank:32+int4"]
)
def test_nothing_is_lost_by_a_group(level: str, ranks: int) -> None:
    """With rounded factors too: what both roundings change stays with the ranks that rounded."""
    world = Together(ranks, Level.parse(level))
    given = torch.zeros(sum(NUMELS), dtype=torch.float64)
    restored = torch.zeros_like(given)
    for step in range(5):
        gradients = drawn(ranks, sum(NUMELS), step)
        given += torch.stack(gradients).double().mean(0)
        results = world.step(gradients)
        assert all(torch.equal(result, results[0]) for result in results)
        restored += results[0].double()
    owed = torch.stack([rank.owed(sum(NUMELS)).double() for rank in world.ranks]).sum(0)
    torch.testing.assert_close(restored + owed, given, atol=5e-5, rtol=1e-5)


def test_what_differs_between_ranks_does_not_pile_up() -> None:
    """Each rank has data of its own kind, so its gradient differs from the others' in the same way at every step. The
    mean has rank 2: factors of rank 4 carry it whole, and nothing must wait."""
    ranks, slices = 3, slices_of([(64, 48)])
    generator = torch.Generator().manual_seed(4)
    common = torch.randn(64, 2, generator=generator)
    own = [(common @ torch.randn(2, 48, generator=generator)).flatten() for _ in range(ranks)]
    factors = [LowRank(LEVEL) for _ in range(ranks)]
    layout = factors[0].layout(slices)
    waiting = [Rank(rank, ranks, 64 * 48) for rank in range(ranks)]
    for _ in range(20):
        run(waiting, own, lambda chunk: alone(chunk, factors[chunk.rank], layout))
    assert max(float(rank.residual.norm()) for rank in waiting) < 1e-3 * float(own[0].norm())


@pytest.mark.parametrize("size", [1e-5, 1.0, 1e3])
@pytest.mark.parametrize("level", ["lowrank:4+fp16", "lowrank:4+int4"])
def test_rounded_factors_carry_as_much_as_exact_ones_whatever_the_size_of_gradients(level: str, size: float) -> None:
    """A loss scale makes gradients large, and the end of a training small."""
    slices = slices_of([(64, 48)])
    generator = torch.Generator().manual_seed(4)
    # Directions of decreasing weight, as gradients have.
    weights = torch.logspace(0, -2, 48)
    own = [
        size
        * ((torch.randn(64, 48, generator=generator) * weights) @ torch.randn(48, 48, generator=generator)).flatten()
        for _ in range(2)
    ]

    def carried(name: str) -> float:
        factors, waiting = [LowRank(Level.parse(name)) for _ in range(2)], [Rank(rank, 2, 64 * 48) for rank in range(2)]
        layout = factors[0].layout(slices)
        for _ in range(6):
            for rank in waiting:
                rank.residual.zero_()  # the subspace alone counts here
            result = run(waiting, own, lambda chunk: alone(chunk, factors[chunk.rank], layout))[0]
        mean = torch.stack(own).double().mean(0)
        return 1 - float((mean - result.double()).norm() ** 2 / mean.norm() ** 2)

    assert carried(level) > carried("lowrank:4") - 0.01


@pytest.mark.parametrize("level", ["lowrank:4+int8", "lowrank:4+int4"])
def test_a_parameter_with_small_gradients_is_not_rounded_away_beside_one_with_large(level: str) -> None:
    """Neither a matrix that is factorised, nor one that is not."""
    shapes: Shapes = [(64, 48), (61, 50), (3, 5), (4, 7)]
    slices, sizes = slices_of(shapes), [1.0, 1e-4, 1.0, 1e-4]
    generator = torch.Generator().manual_seed(4)
    own = torch.cat(
        [size * torch.randn(part.numel, generator=generator) for part, size in zip(slices, sizes, strict=True)]
    )
    factors, waiting = (
        [LowRank(Level.parse(level)) for _ in range(2)],
        [Rank(rank, 2, own.numel()) for rank in range(2)],
    )
    layout = factors[0].layout(slices)
    assert [len(kind) for kind in (layout.matrices, layout.rounded, layout.whole)] == [2, 2, 0]
    result = run(waiting, [own, own], lambda chunk: alone(chunk, factors[chunk.rank], layout))[0]
    for part in slices[2:]:
        sent, given = result[part.offset :][: part.numel], own[part.offset :][: part.numel]
        assert float((sent - given).norm()) < 0.15 * float(given.norm())
    small = slices[1]
    sent, given = result[small.offset :][: small.numel], own[small.offset :][: small.numel]
    whole = LowRank(LEVEL)
    alone_layout = whole.layout([ParameterSlice("1", 0, small.shape, small.numel)])
    exact = run(
        [Rank(rank, 2, small.numel) for rank in range(2)], [given, given], lambda c: alone(c, whole, alone_layout)
    )
    assert float((sent - given).norm()) < 1.02 * float((exact[0] - given).norm())


@pytest.mark.parametrize("ranks", [2, 3, 6])
@pytest.mark.parametrize("level", ["lowrank:4", "lowrank:4+int8", "lowrank:64+int8"])
def test_a_group_sends_the_bytes_of_its_footprint(level: str, ranks: int) -> None:
    world = Together(ranks, Level.parse(level))
    world.step(drawn(ranks, sum(NUMELS)))
    layouts = [world.factors[0].layout(slices) for slices in SLICES]
    sums = FactorSum(world.factors[0].level.values, 0, ranks)
    left = sums.footprint(sum(one.left_numel for one in layouts), sum(one.whole_numel for one in layouts))
    right = sums.footprint(sum(one.right_numel for one in layouts), 0)
    assert world.operations == left.hops + right.hops
    assert world.bytes == pytest.approx(left.wire_bytes + right.wire_bytes, rel=0.001)


def test_a_group_has_two_latencies_whatever_the_number_of_its_buckets_and_ranks() -> None:
    for world in (2, 4):
        together = Together(world)
        together.step(drawn(world, sum(NUMELS)))
        assert together.operations == 2


def test_a_nan_spoils_its_own_bucket_and_no_other_of_the_group() -> None:
    world = Together(2)
    world.step(drawn(2, sum(NUMELS)))
    before = [rank.residual.clone() for rank in world.ranks]
    gradients = drawn(2, sum(NUMELS), 1)
    gradients[1][NUMELS[0] + 5] = float("nan")
    spoiled = slice(NUMELS[0], NUMELS[0] + NUMELS[1])
    for result, rank, residual in zip(world.step(gradients), world.ranks, before, strict=True):
        assert result[spoiled].isnan().all()
        assert result[: NUMELS[0]].isfinite().all()
        assert result[NUMELS[0] + NUMELS[1] :].isfinite().all()
        assert torch.equal(rank.residual[spoiled], residual[spoiled])
        assert not torch.equal(rank.residual[: NUMELS[0]], residual[: NUMELS[0]])


def test_an_infinite_right_factor_changes_neither_residual_nor_warm_start() -> None:
    slices = (ParameterSlice("w", 0, (64, 48), 64 * 48),)
    lowranks = [LowRank(Level.parse("lowrank:2")) for _ in range(2)]
    layout = lowranks[0].layout(slices)
    ranks = [Rank(rank, 2, 64 * 48) for rank in range(2)]
    huge = [torch.full((64 * 48,), 3e38) for _ in range(2)]
    small = [torch.randn(48, 2, generator=torch.Generator().manual_seed(1)) * 1e-3 for _ in range(2)]
    for factors, warm in zip(lowranks, small, strict=True):
        factors.load_state_dict({"w": warm})
    results = run(ranks, huge, lambda chunk: alone(chunk, lowranks[chunk.rank], layout))
    assert results[0].isnan().all()
    for rank, factors, warm in zip(ranks, lowranks, small, strict=True):
        assert not rank.residual.any()
        assert torch.equal(factors.state_dict()["w"], warm)


def test_low_rank_factors_restore_a_low_rank_gradient() -> None:
    slices = (ParameterSlice("w", 0, (64, 48), 64 * 48), ParameterSlice("b", 64 * 48, (64,), 64))
    lowranks = [LowRank(Level.parse("lowrank:2")) for _ in range(3)]
    layout = lowranks[0].layout(slices)
    numel = 64 * 48 + 64
    generator = torch.Generator().manual_seed(5)
    basis = torch.randn(64, 2, generator=generator), torch.randn(48, 2, generator=generator)
    parts = []
    for scale in (1.0, 2.0, 3.0):
        matrix = (basis[0] * scale) @ basis[1].T
        parts.append(torch.cat([matrix.flatten(), torch.full((64,), scale)]))
    ranks = [Rank(rank, 3, numel) for rank in range(3)]
    results = run(ranks, parts, lambda chunk: alone(chunk, lowranks[chunk.rank], layout))
    torch.testing.assert_close(results[0], torch.stack(parts).mean(0), atol=1e-4, rtol=1e-4)
    assert torch.equal(results[0], results[2])


def counted(slices: tuple[ParameterSlice, ...], world: int) -> tuple[int, int]:
    """Bytes and operations that a rank really used for a bucket."""
    numel = sum(part.numel for part in slices)
    ops: list[Op] = []
    factors = [LowRank(LEVEL) for _ in range(world)]

    def noted(chunk: Chunk) -> Iterator[Op]:
        for op in alone(chunk, factors[chunk.rank], factors[0].layout(slices)):
            if chunk.rank == 0:
                ops.append(op)
            yield op

    run([Rank(rank, world, numel) for rank in range(world)], drawn(world, numel), noted)
    return sum(op.wire_bytes(world) for op in ops), len(ops)


@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize("shape", [(64, 48), (3000, 40), (2000, 2000)])
def test_the_footprint_has_the_bytes_and_latencies_of_the_exchange(shape: tuple[int, int], world: int) -> None:
    slices = slices_of([shape, shape[:1]])
    bucket = Bucket(0, 0, sum(part.numel for part in slices), 4, slices, True)
    (size,) = FootprintTable(world)(LEVEL, (bucket,))
    nbytes, operations = counted(slices, world)
    assert size.hops == operations
    assert size.wire_bytes == pytest.approx(nbytes, rel=0.001, abs=8 * world * world)


def step_of(shapes: Sequence[Shapes]) -> tuple[Bucket, ...]:
    slices = [slices_of(one, f"{index} ") for index, one in enumerate(shapes)]
    last = len(shapes) - 1
    return tuple(
        Bucket(index, 0, sum(part.numel for part in own), 4, own, index == last) for index, own in enumerate(slices)
    )


def nbytes_of(bucket: Bucket) -> int:
    factors = LowRank(LEVEL)
    return factors.nbytes(factors.layout(bucket.slices))


def test_a_group_ends_when_its_factors_are_large_and_with_the_first_and_the_last_bucket() -> None:
    first, middle, last = step_of([[(8, 8)]] * 3)
    assert ends_group(first, 0)
    assert ends_group(last, 0)
    assert not ends_group(middle, FUSED_BYTES - 1)
    assert ends_group(middle, FUSED_BYTES)


def test_many_small_buckets_have_the_bytes_of_their_groups_and_the_hops_of_the_last() -> None:
    """Each bucket has factors of 25.6 KB, so three of them are a group."""
    buckets = step_of([[(800, 800)]] * 9)
    sizes = FootprintTable(4)(LEVEL, buckets)
    assert [bool(size.wire_bytes) for size in sizes] == [True, False, False, True, False, False, True, False, True]
    assert [size.hops for size in sizes] == [2, 0, 0, 2, 0, 0, 2, 0, 2]
    whole = sum(nbytes_of(bucket) for bucket in buckets)
    assert sum(size.wire_bytes for size in sizes) == 3 * whole


def test_buckets_without_a_last_one_end_with_the_step() -> None:
    buckets = [
        Bucket(1 + place, 0, bucket.numel, 4, bucket.slices, False)
        for place, bucket in enumerate(step_of([[(800, 800)]] * 2))
    ]
    sizes = FootprintTable(2)(LEVEL, buckets)
    assert sizes[0].wire_bytes == 0
    assert sizes[1].wire_bytes == 2 * nbytes_of(buckets[0])
