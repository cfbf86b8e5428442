"""The executor: any plan over any wire gives every member the same mean, and loses nothing."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from gradwire.compress.values import ALIGN
from gradwire.errors import ConfigError, LinkError
from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.model.matrix_io import generated, netstorm9
from gradwire.plan.planners.registry import PLANNERS, make_plan
from gradwire.transport.wires.ltp import Contract
from gradwire.tree.accumulator import CELL
from gradwire.tree.executor_config import ExecutorConfig
from gradwire.tree.partition import Partitioner
from gradwire.types import Plan
from tests.tree.grid import FakeNet, Grid, ltp_wires

CHUNK = 64 << 10
NUMELS = (30_000, 700, 100_001)


def plan_for(matrix: Matrix, name: str = "loadaware") -> Plan:
    return make_plan(matrix, ReductionJob(4 * sum(NUMELS), CHUNK), name)


def nine() -> Matrix:
    """The 9-site network over ranks 0..8: few links, so star and ring need relays."""
    sites = netstorm9(3).matrix
    return Matrix.of(sites.rate, sites.rtprop)


def random_gradients(ranks: int, seed: int = 0) -> list[list[Tensor]]:
    draw = torch.Generator().manual_seed(seed)
    return [[torch.randn(n, generator=draw) for n in NUMELS] for _ in range(ranks)]


def mean_of(gradients: list[list[Tensor]]) -> list[Tensor]:
    return [torch.stack([own[b] for own in gradients]).double().mean(0) for b in range(len(gradients[0]))]


def assert_identical(results: list[list[Tensor]]) -> None:
    for own in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(own, results[0], strict=True))


@pytest.mark.parametrize("name", PLANNERS)
def test_every_plan_sums_everything_once(name: str) -> None:
    gradients = random_gradients(9)
    net = FakeNet()
    with Grid([net.wire(r) for r in range(9)], plan_for(nine(), name), NUMELS) as grid:
        results = grid.run(gradients, "off")
    assert_identical(results)
    for got, expected in zip(results[0], mean_of(gradients), strict=True):
        assert torch.allclose(got.double(), expected, atol=1e-6)


@pytest.mark.parametrize("level", ["off", "int8"])
@pytest.mark.parametrize("numels", [(0, 30_000), (30_000, 0)])
def test_an_empty_bucket_is_reduced_with_the_others(numels: tuple[int, ...], level: str) -> None:
    """Also as the last of a step, which it ends."""
    gradients = [[torch.full((numel,), float(rank)) for numel in numels] for rank in range(3)]
    net = FakeNet()
    with Grid([net.wire(r) for r in range(3)], plan_for(generated(3, 1).matrix), numels) as grid:
        for _ in range(3):
            results = grid.run(gradients, level)
            assert_identical(results)
            assert [values.numel() for values in results[0]] == list(numels)
            assert torch.allclose(torch.cat(results[0]), torch.ones(30_000), atol=0.02)


@pytest.mark.parametrize(
    "level", ["off", "fp16", "int8", "int4", "int2", "randk:0.1", "sharedk:0.05+int8", "randk:0.2+fp16"]
)
def test_over_real_packets_replicas_agree_and_what_is_missing_is_in_residuals(level: str) -> None:
    matrix = generated(4, 1).matrix
    owed = mean_of([[torch.zeros(n) for n in NUMELS]])
    with ltp_wires(4) as wires, Grid(wires, plan_for(matrix), NUMELS) as grid:
        restored = [torch.zeros(n, dtype=torch.float64) for n in NUMELS]
        for step in range(3):
            gradients = random_gradients(4, step)
            results = grid.run(gradients, level)
            assert_identical(results)
            for place, mean in enumerate(mean_of(gradients)):
                owed[place] += mean
                restored[place] += results[0][place].double()
        for place in range(len(NUMELS)):
            waiting = torch.stack([own[place] for own in grid.residuals]).double().sum(0) / 4
            assert torch.allclose(restored[place] + waiting, owed[place], atol=1e-4)


def test_busy_links_use_side_routes_and_the_sum_stays_the_same() -> None:
    plan = plan_for(generated(9, 1).matrix, "ring")
    assert plan.auxiliary
    gradients = random_gradients(9)
    net = FakeNet()
    with Grid([net.wire(r) for r in range(9)], plan, NUMELS, ExecutorConfig(side=True)) as grid:
        for executor in grid.executors:
            # As if the wire were slow: every link has a queue, as long as the side is idle.
            executor.frame_io.queued = _Crowded()
        for _ in range(3):
            results = grid.run(gradients, "off")
            assert_identical(results)
            for got, expected in zip(results[0], mean_of(gradients), strict=True):
                assert torch.allclose(got.double(), expected, atol=1e-6)
        assert sum(executor.side_routes.sent_frames for executor in grid.executors if executor.side_routes) > 10


class _Crowded(Counter[int]):
    def __getitem__(self, peer: int) -> int:
        return 3


def test_lost_cells_return_to_residuals_and_the_mean_counts_only_what_arrived() -> None:
    lost: list[int] = []

    def lose(contract: Contract, size: int) -> tuple[tuple[int, int], ...]:
        if contract.tolerance >= 1:
            return ()
        first = -(-contract.critical[0][1] // CELL) * CELL
        ranges = tuple((at, min(CELL, size - at)) for at in range(first, size, 7 * CELL))
        lost.append(sum(n for _, n in ranges))
        return ranges

    net = FakeNet(lose)
    ones = [[torch.full((n,), float(rank + 1)) for n in NUMELS] for rank in range(9)]
    for level in ("off", "int8", "fp16"):
        with Grid(
            [net.wire(r) for r in range(9)], plan_for(nine(), "kary"), NUMELS, ExecutorConfig(tolerance=0.5)
        ) as grid:
            results = grid.run(ones, level)
            assert_identical(results)
            for place in range(len(NUMELS)):
                got = results[0][place]
                assert float(got.min()) >= 0.99, "an element was divided by members whose part was lost"
                assert float(got.max()) <= 9.01
                waits = torch.stack([own[place] for own in grid.residuals]).sum(0)
                whole = got.isclose(torch.tensor(5.0), atol=0.05)
                assert (waits[~whole] > 0.5).all(), "what was lost must be in a residual"
    assert lost


def test_levels_that_cannot_be_summed_are_named() -> None:
    net = FakeNet()
    with (
        Grid([net.wire(r) for r in range(2)], plan_for(generated(2).matrix), NUMELS) as grid,
        pytest.raises(ConfigError, match="sharedk"),
    ):
        grid.run(random_gradients(2), "topk:0.1")


def test_shares_hold_over_small_and_large_buckets() -> None:
    plan = plan_for(nine())
    for sizes in ([50_000_000], [300_000] * 200, [999, 12_345_678] * 3, [30_001] * 1000):
        partitioner = Partitioner(plan)
        assigned = [0] * len(plan.trees)
        for numel in sizes:
            pieces = partitioner.partition(numel)
            assert sum(piece.numel for piece in pieces) == numel
            places = sorted((piece.start, piece.numel) for piece in pieces)
            assert all(start % ALIGN == 0 for start, _ in places)
            assert all(a + n == b for (a, n), (b, _) in pairwise(places))
            for piece in pieces:
                assigned[piece.tree] += piece.numel
        for tree, got in zip(plan.trees, assigned, strict=True):
            assert abs(got / sum(sizes) - tree.share) < 0.01


def test_well_compressed_buckets_go_in_few_pieces() -> None:
    plan, numel = plan_for(nine()), 954_700
    counts = [len(Partitioner(plan).partition(numel, ratio)) for ratio in (1.0, 0.25, 0.025, 0.0025)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 40
    assert counts[-1] <= 3
    partitioner, assigned = Partitioner(plan), [0] * len(plan.trees)
    for _ in range(300):
        for piece in partitioner.partition(numel, 0.0025):
            assigned[piece.tree] += piece.numel
    for tree, got in zip(plan.trees, assigned, strict=True):
        assert abs(got / (300 * numel) - tree.share) < 0.02


def test_a_close_that_is_repeated_after_an_error_releases_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    net = FakeNet()
    with Grid([net.wire(rank) for rank in range(9)], plan_for(nine()), NUMELS) as grid:
        executor = grid.executors[0]
        closed: list[int] = []
        monkeypatch.setattr(executor.frame_io, "close", lambda: closed.append(1))
        thread = executor._thread
        with monkeypatch.context() as patch:
            patch.setattr(thread, "join", lambda timeout: None)
            patch.setattr(thread, "is_alive", lambda: True)
            with pytest.raises(LinkError, match="close again later"):
                executor.close(0.0)
        thread.join(10)
        executor.close()
        executor.close()
        assert closed == [1]
