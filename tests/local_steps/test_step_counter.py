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
