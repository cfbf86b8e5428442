"""Global weights, pseudo-gradients, and the way back into the model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradwire.local_steps.global_weights import FlatWeights, GlobalWeights


def weights_of(module: nn.Module, cap: int = 64) -> GlobalWeights:
    return GlobalWeights(module.named_parameters(), cap)


def test_the_pseudo_gradient_points_from_the_local_weights_to_the_global_ones() -> None:
    module = nn.Linear(3, 2)
    weights = weights_of(module)
    with torch.no_grad():
        module.weight.sub_(2.0)
        module.bias.add_(1.0)
    for bucket in weights.buckets:
        bucket.measure()
    assert torch.allclose(weights.parameters[0].grad, torch.full((2, 3), 2.0))
    assert torch.allclose(weights.parameters[1].grad, torch.full((2,), -1.0))


def test_an_outer_step_of_one_reaches_the_local_weights_exactly_where_their_difference_is_exact() -> None:
    module = nn.Linear(3, 2)
    weights = weights_of(module)
    with torch.no_grad():
        module.weight.add_(0.5)
    target = [one.detach().clone() for one in module.parameters()]
    for bucket in weights.buckets:
        bucket.measure()
    torch.optim.SGD(weights.parameters, lr=1.0).step()
    weights.reset_local()
    for one, expected in zip(module.parameters(), target, strict=True):
        assert torch.allclose(one, expected, atol=1e-6)


def test_a_channels_last_model_keeps_its_memory_format() -> None:
    module = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
    before = module.weight.detach().clone()
    weights = weights_of(module)
    weights.reset_local()
    assert torch.equal(module.weight, before)
    assert module.weight.is_contiguous(memory_format=torch.channels_last)


def test_global_weights_of_half_precision_are_float32() -> None:
    module = nn.Linear(3, 2).to(torch.bfloat16)
    weights = weights_of(module)
    assert {one.dtype for one in weights.parameters} == {torch.float32}
    with torch.no_grad():
        weights.buckets[0].flat.add_(1e-4)
    assert weights.buckets[0].measure().max() > 0, "less than bfloat16 can represent is kept"


def test_tied_weights_have_one_global_weight() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = module[0].weight
    assert len(weights_of(module).parameters) == 3


def test_the_model_has_its_own_weights_again_after_a_swap_that_raised() -> None:
    module = nn.Linear(3, 2)
    weights = weights_of(module)
    with torch.no_grad():
        module.weight.add_(1.0)
    own = module.weight.detach().clone()

    def evaluate() -> None:
        with weights.swapped_in():
            assert torch.allclose(module.weight, own - 1.0, atol=1e-6)
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        evaluate()
    assert torch.equal(module.weight, own)


def test_pruning_reads_and_zeroes_the_global_weights() -> None:
    flat = torch.arange(5.0)
    weights = FlatWeights(flat)
    read = weights.read(1, 2)
    weights.zero(torch.tensor([1, 4]))
    assert read.tolist() == [1.0, 2.0], "a copy"
    assert flat.tolist() == [0.0, 0.0, 2.0, 3.0, 0.0]
