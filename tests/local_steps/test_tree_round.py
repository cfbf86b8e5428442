"""What ranks average beside the weights along trees, and which ranks took part."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradwire.errors import LinkError
from gradwire.local_steps.divergence import DivergenceMeter
from gradwire.local_steps.period_vote import PeriodVote
from gradwire.local_steps.tree_mean import TreeMean
from gradwire.local_steps.tree_round import TreeBuffers, TreeDivergence, TreeRound
from gradwire.tree.request import BucketRequest
from tests.local_steps.worlds import Alone

WORLD = 4


class Trees:
    """The mean over those of the ranks that take part, when all have submitted."""

    step = 7

    def __init__(self) -> None:
        self.requests: list[BucketRequest] = []

    def submit(self, request: BucketRequest) -> None:
        self.requests.append(request)

    def reduce(self, *ranks: int) -> None:
        mean = torch.stack([self.requests[rank].gradient for rank in ranks]).sum(0) / len(ranks)
        for request in self.requests:
            request.gradient.copy_(mean)
            request.done(None)


def rank_parts(trees: Any, rank: int, module: nn.Module) -> tuple[TreeDivergence, TreeBuffers]:
    group: Any = Alone()
    shared = TreeRound(TreeMean(trees, index=3), trees, rank, WORLD)
    return TreeDivergence(shared, group, 1.0), TreeBuffers(shared, dict(module.named_buffers()), group, 1.0)


def gradient(rank: int) -> Tensor:
    return torch.randn(5000, generator=torch.Generator().manual_seed(rank))


def test_a_rank_that_is_lost_is_in_no_mean() -> None:
    trees, norms = Trees(), [nn.BatchNorm1d(3) for _ in range(WORLD)]
    for rank, norm in enumerate(norms):
        assert norm.running_mean is not None and norm.num_batches_tracked is not None  # noqa: PT018
        norm.running_mean.fill_(float(rank))
        norm.num_batches_tracked.fill_(40)
    parts = [rank_parts(trees, rank, norm) for rank, norm in enumerate(norms)]
    for rank, (meter, buffers) in enumerate(parts):
        buffers.begin()
        meter.begin([(0, gradient(rank))])
    assert {one.bucket.step for one in trees.requests} == {7}
    assert all(one.own_level and one.level.off and not one.bucket.is_last for one in trees.requests)
    trees.reduce(0, 1, 3)
    pairs = [torch.cosine_similarity(gradient(a), gradient(b), dim=0) for a, b in ((0, 1), (0, 3), (1, 3))]
    for meter, buffers in parts:
        found = meter.finish()
        assert found.ranks == (0, 1, 3)
        assert found.alignment == pytest.approx(float(torch.stack(pairs).mean()), abs=0.1)
        norm_of = torch.stack([gradient(one).square().sum() for one in (0, 1, 3)]).mean().sqrt()
        assert found.norm == pytest.approx(float(norm_of), rel=1e-4)
        buffers.finish()
    for norm in norms:
        assert norm.running_mean is not None
        assert torch.allclose(norm.running_mean, torch.full((3,), 4 / 3))
        assert int(norm.num_batches_tracked or 0) == 40


def test_the_divergence_of_all_ranks_is_that_of_an_all_reduce() -> None:
    trees, alone = Trees(), []
    for rank in range(WORLD):
        meter, _ = rank_parts(trees, rank, nn.Identity())
        meter.begin([(0, gradient(rank))])
        plain: Any = DivergenceMeter(Alone(), 1.0)  # type: ignore[arg-type]
        plain.begin([(0, gradient(rank))])
        alone.append(plain._sums)
    trees.reduce(*range(WORLD))
    assert torch.allclose(meter.shared.sums, torch.stack(alone).sum(0), atol=1e-3)


@pytest.mark.parametrize("lost", [0, 2])
def test_the_vote_of_a_round_is_that_of_the_ranks_that_took_part(lost: int) -> None:
    trees, meters = Trees(), []
    for rank in range(WORLD):
        meter, buffers = rank_parts(trees, rank, nn.BatchNorm1d(3))
        meter.shared.vote = PeriodVote(lambda rank=rank: None if rank else 50)  # type: ignore[misc]
        buffers.begin()
        meter.begin([(0, gradient(rank))])
        meters.append(meter)
    trees.reduce(*(rank for rank in range(WORLD) if rank != lost))
    found = {meter.shared.vote.result(meter.shared.votes, 20) for meter in meters}
    assert found == {20 if lost == 0 else 50}


def test_a_failure_of_the_trees_is_raised_where_the_mean_is_waited_for() -> None:
    trees = Trees()
    meter, _ = rank_parts(trees, 0, nn.Identity())
    meter.begin([(0, gradient(0))])
    trees.requests[0].done(LinkError("gone"))
    with pytest.raises(LinkError, match="gone"):
        meter.finish()
