"""Steps of the optimizer, made and skipped, count once each."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gradwire.errors import ConfigError
from gradwire.local_steps.model_parameters import ModelParameters
from gradwire.local_steps.step_counter import StepCounter


class Counted:
    """A model, its optimizer and the steps that were counted."""

    def __init__(self, bind: bool = True) -> None:
        self.module = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.1)
        self.steps = 0
        self.counter = StepCounter(ModelParameters.of(self.module), self._step)
        if bind:
            self.counter.bind(self.optimizer)

    def _step(self) -> None:
        self.steps += 1

    def scaled_step(self, scaler: torch.amp.GradScaler, overflow: bool) -> None:
        self.optimizer.zero_grad()
        loss = self.module(torch.ones(1, 2)).sum() * (torch.inf if overflow else 1.0)
        scaler.scale(loss).backward()
        scaler.step(self.optimizer)
        scaler.update()


def test_every_step_of_the_bound_optimizer_counts_and_no_others() -> None:
    counted = Counted()
    counted.optimizer.step()
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1).step()
    counted.optimizer.step()
    assert counted.steps == 2


def test_a_schedule_and_a_second_binding_count_nothing_twice() -> None:
    counted = Counted()
    schedule = torch.optim.lr_scheduler.StepLR(counted.optimizer, 1)
    counted.counter.bind(counted.optimizer)
    counted.optimizer.step()
    schedule.step()
    assert counted.steps == 1


def test_steps_that_a_followed_scaler_skips_count_once() -> None:
    counted, scaler = Counted(), torch.amp.GradScaler("cpu")
    counted.counter.found = scaler
    counted.counter.follow(scaler)
    before = counted.module.weight.detach().clone()
    counted.scaled_step(scaler, overflow=True)
    assert torch.equal(before, counted.module.weight)
    assert counted.steps == 1
    counted.scaled_step(scaler, overflow=False)
    assert counted.steps == 2


def test_without_a_known_optimizer_the_first_one_that_steps_the_model_is_taken() -> None:
    counted, scaler = Counted(bind=False), torch.amp.GradScaler("cpu")
    counted.counter.follow(scaler)
    counted.scaled_step(scaler, overflow=True)
    assert counted.counter.bound
    assert counted.steps == 1
    counted.scaled_step(scaler, overflow=False)
    assert counted.steps == 2


def test_a_second_optimizer_is_refused() -> None:
    counted = Counted()
    with pytest.raises(ConfigError, match="another optimizer"):
        counted.counter.bind(torch.optim.Adam(counted.module.parameters()))


def test_nothing_counts_after_close_and_the_scaler_is_as_it_was() -> None:
    counted, scaler = Counted(), torch.amp.GradScaler("cpu")
    counted.counter.follow(scaler)
    counted.counter.close()
    counted.optimizer.step()
    counted.scaled_step(scaler, overflow=True)
    assert counted.steps == 0
    assert "step" not in vars(scaler)


class Two(Counted):
    """Weight and bias have an optimizer each."""

    def __init__(self) -> None:
        super().__init__(bind=False)
        self.first = torch.optim.SGD([self.module.weight], lr=0.1)
        self.second = torch.optim.Adam([self.module.bias], lr=0.1)
        self.counter.bind([self.first, self.second])


def test_a_step_of_several_optimizers_ends_with_the_last_of_them() -> None:
    two = Two()
    counts = []
    for one in (two.first, two.second, two.second, two.first, two.first, two.first, two.second):
        one.step()
        counts.append(two.steps)
    assert counts == [0, 1, 1, 2, 2, 2, 3], "the one with the fewest steps counts"


def test_a_scaler_may_skip_the_step_of_one_of_several_optimizers() -> None:
    two, scaler = Two(), torch.amp.GradScaler("cpu")
    two.counter.follow(scaler)
    for overflow in (False, True, False):
        for one in (two.first, two.second):
            one.zero_grad()
        loss = two.module(torch.ones(1, 2)).sum()
        scaler.scale(loss).backward()
        if overflow:
            assert two.module.bias.grad is not None
            two.module.bias.grad.fill_(torch.inf)
        scaler.step(two.first)
        scaler.step(two.second)
        scaler.update()
    assert two.steps == 3


def test_several_optimizers_must_step_all_parameters_together() -> None:
    counted = Counted(bind=False)
    first = torch.optim.SGD([counted.module.weight], lr=0.1)
    with pytest.raises(ConfigError, match=r"this SGD and this Adam do not step 'bias' \(1 of 2"):
        counted.counter.bind([first, torch.optim.Adam([counted.module.weight])])
    counted.counter.bind((first, torch.optim.SGD([counted.module.bias], lr=0.1), first))
    with pytest.raises(ConfigError, match="another optimizer"):
        counted.counter.bind([torch.optim.SGD(counted.module.parameters(), lr=0.1)])
