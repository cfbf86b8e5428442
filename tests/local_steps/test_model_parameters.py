"""Which optimizers step exactly a model's parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradwire.errors import ConfigError
from gradwire.local_steps.model_parameters import ModelParameters, unwrapped


def test_frozen_and_ignored_parameters_need_no_optimizer_and_may_have_one() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].requires_grad_(False)
    found = ModelParameters.of(module, {"2.weight", "2.bias"})
    assert list(found.trained) == ["0.weight", "0.bias"]
    assert found.numel == 6
    found.check(torch.optim.SGD(module[0].parameters(), lr=0.1))
    found.check(torch.optim.SGD(module.parameters(), lr=0.1))


def test_an_optimizer_with_too_few_or_foreign_parameters_is_refused() -> None:
    module, other = nn.Linear(2, 2), nn.Linear(2, 2)
    found = ModelParameters.of(module)
    with pytest.raises(ConfigError, match=r"does not step 'bias' \(1 of 2"):
        found.check(torch.optim.SGD([module.weight], lr=0.1))
    with pytest.raises(ConfigError, match="not the model's"):
        found.check(torch.optim.SGD([*module.parameters(), *other.parameters()], lr=0.1))
    assert not found.has_any(torch.optim.SGD(other.parameters(), lr=0.1))


def test_the_optimizer_inside_a_frameworks_wrapper_counts() -> None:
    class Wrapper:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)

    assert unwrapped(Wrapper()) is Wrapper.optimizer
    with pytest.raises(ConfigError, match="list is not a torch optimizer"):
        unwrapped([])
