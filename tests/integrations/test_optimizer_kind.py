"""Whether an optimizer has second moments is seen from its first step."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from gradwire.compress.gradient_sample import GradientSampler
from gradwire.integrations.optimizer_kind import watch_optimizer
from gradwire.integrations.optimizer_watch import _watchers


@pytest.fixture(autouse=True)
def _only_this_test() -> Iterator[None]:
    """Models of other tests may wait for their optimizer."""
    others, _watchers[:] = list(_watchers), []
    yield
    _watchers[:] = others


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("make", "adaptive"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), False),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), False),
        (torch.optim.Adam, True),
        (torch.optim.AdamW, True),
        (torch.optim.RMSprop, True),
        (torch.optim.Adagrad, True),
        (torch.optim.Adamax, True),
    ],
)
def test_the_kind_is_known_after_one_step(make, adaptive: bool) -> None:
    model, sampler = nn.Linear(3, 2), GradientSampler(8)
    watch_optimizer(model.parameters(), sampler)
    assert sampler.adaptive is None
    step(model, make(model.parameters()))
    assert sampler.adaptive is adaptive


def test_the_learning_rate_is_that_of_the_last_step() -> None:
    model, sampler = nn.Linear(3, 2), GradientSampler(8)
    watch_optimizer(model.parameters(), sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step(model, optimizer)
    assert sampler.rate == 0.1
    optimizer.param_groups[0]["lr"] = 0.01
    step(model, optimizer)
    assert sampler.rate == 0.01
    optimizer.param_groups[0]["lr"] = torch.tensor(0.02)
    step(model, optimizer)
    assert sampler.rate is None, "a tensor may be on a device"


def test_hooks_of_others_are_called_as_well() -> None:
    """torch iterates over its hooks while it calls them: a watch that ends must not change them."""
    called = []
    first = register_optimizer_step_post_hook(lambda *_: called.append(1))
    model, sampler = nn.Linear(3, 2), GradientSampler(8)
    watch_optimizer(model.parameters(), sampler)
    second = register_optimizer_step_post_hook(lambda *_: called.append(2))
    try:
        step(model, torch.optim.Adam(model.parameters()))
    finally:
        first.remove()
        second.remove()
    assert called == [1, 2]
    assert sampler.adaptive


def test_another_models_optimizer_says_nothing() -> None:
    model, other, sampler = nn.Linear(3, 2), nn.Linear(3, 2), GradientSampler(8)
    watch_optimizer(model.parameters(), sampler)
    step(other, torch.optim.Adam(other.parameters()))
    assert sampler.adaptive is None
    step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert sampler.adaptive is False


def test_a_watch_ends_with_its_model_and_keeps_nothing_alive() -> None:
    model, sampler = nn.Linear(3, 2), GradientSampler(8)
    watch_optimizer(model.parameters(), sampler)
    del model
    gc.collect()
    other = nn.Linear(3, 2)
    step(other, torch.optim.SGD(other.parameters(), lr=0.1))
    assert not _watchers
    watch_optimizer(other.parameters(), None)
    assert not _watchers, "no sampler, no watch"
