"""The outer optimizer: made from settings or by a user's function."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradwire.config import OuterConfig
from gradwire.errors import ConfigError
from gradwire.local_steps.outer_optimizer import make_outer, name_of

PARAMETERS = [nn.Parameter(torch.zeros(2))]


def test_the_default_is_nesterov_with_the_settings_rate_and_momentum() -> None:
    (group,) = make_outer(OuterConfig(), None, PARAMETERS).param_groups
    assert (group["lr"], group["momentum"], group["nesterov"]) == (0.7, 0.6, True)


def test_nesterov_without_momentum_is_plain_sgd() -> None:
    (group,) = make_outer(OuterConfig(momentum=0.0), None, PARAMETERS).param_groups
    assert (group["momentum"], group["nesterov"]) == (0.0, False)


def test_average_takes_the_whole_pseudo_gradient() -> None:
    (group,) = make_outer(OuterConfig(kind="average"), None, PARAMETERS).param_groups
    assert (group["lr"], group["momentum"]) == (1.0, 0.0)


def test_a_function_makes_any_torch_optimizer() -> None:
    assert isinstance(make_outer(OuterConfig(), torch.optim.Adam, PARAMETERS), torch.optim.Adam)


def test_a_function_that_makes_something_else_is_refused() -> None:
    with pytest.raises(ConfigError, match="returned list, not a torch optimizer"):
        make_outer(OuterConfig(), list, PARAMETERS)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="exactly the parameters"):
        make_outer(OuterConfig(), lambda _: torch.optim.Adam([nn.Parameter(torch.zeros(1))]), PARAMETERS)


def test_ranks_compare_names_that_tell_settings_apart() -> None:
    names = {name_of(OuterConfig(), None), name_of(OuterConfig(lr=1.0), None), name_of(OuterConfig("average"), None)}
    assert len(names | {name_of(OuterConfig(), torch.optim.Adam)}) == 4
