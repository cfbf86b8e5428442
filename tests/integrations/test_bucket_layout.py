"""Gradients and weights in the order that they have in DDP's bucket."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.integrations.bucket_layout import in_bucket_order
from gradwire.integrations.ddp_hook import BucketWeights
from tests.train.ranks import Ranks


def _in_ddps_bucket(rank: int, world: int, form: str) -> bool:
    net = nn.Conv2d(3, 4, 2, bias=False)
    if form == "channels last":
        net = net.to(memory_format=torch.channels_last)
    if form == "with gaps":
        net.weight = nn.Parameter(torch.randn(4, 3, 2, 4)[..., ::2])
    model, found = DistributedDataParallel(net), []

    def hook(state: object, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        found.append(bucket.buffer().clone())
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    hook.__annotations__.clear()  # DDP takes none that are strings
    model.register_comm_hook(None, hook)
    model(torch.randn(2, 3, 5, 5)).square().sum().backward()
    assert net.weight.grad is not None
    return torch.equal(in_bucket_order(net.weight.grad, net.weight), found[0])


@pytest.mark.parametrize("form", ["contiguous", "channels last", "with gaps"])
def test_a_kept_gradient_has_the_order_of_ddps_bucket(ranks: Ranks, form: str) -> None:
    assert ranks.run(1, _in_ddps_bucket, form) == [True]


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_pruning_reads_and_clears_weights_at_their_places_in_the_bucket(form: torch.memory_format) -> None:
    bias = nn.Parameter(torch.tensor([7.0, 8.0]))
    weight = nn.Parameter(torch.arange(1.0, 49.0).view(4, 3, 2, 2).to(memory_format=form))
    weights, bucket = (
        BucketWeights([bias, weight]),
        torch.cat([bias.detach(), in_bucket_order(weight.detach(), weight)]),
    )
    assert torch.equal(weights.read(1, 20), bucket[1:21])
    weights.zero(torch.tensor([0, 2, 9]))
    bucket[[0, 2, 9]] = 0.0
    assert torch.equal(weights.read(0, 50), bucket)
    assert int((weight == 0).sum()) == 2
