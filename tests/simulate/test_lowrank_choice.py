"""`auto` and low rank in virtual time: it stays where little waits, and leaves where a wide model loses by it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest
import torch

from gradwire.decide.lowrank_price import FILLING, SETTLED
from gradwire.network.presets import preset
from gradwire.simulate.training import SimulatedJob, SimulatedStep, TrainingSimulation
from harness.wide_tasks import sized_task

pytestmark = pytest.mark.slow  # seconds of real training each

STEPS = 90


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small matrices on a busy machine: threads that wait for each other take ten times as long."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def trained(task: str) -> list[SimulatedStep]:
    job = SimulatedJob(
        sized_task(task, None).task, preset("lan100", hosts=2), "auto", compute=0.02, evaluate_every=1000
    )
    return list(islice(TrainingSimulation(job), STEPS))


def lowrank_steps(steps: list[SimulatedStep]) -> list[int]:
    return [step.step for step in steps if step.level.select == "lowrank"]


def test_a_wide_model_whose_gradient_no_rank_holds_leaves_low_rank_when_its_residual_is_full() -> None:
    steps = trained("regression-256b48")
    low = lowrank_steps(steps)
    assert low, "by rank alone it is allowed"
    assert len(low) <= FILLING + SETTLED + 5
    assert steps[-1].level.select == "all"


def test_a_wide_model_whose_gradient_a_rank_holds_stays() -> None:
    """Batches of four from two workers: no gradient has a rank of more than eight."""
    steps = trained("mlp-512b4")
    assert len(lowrank_steps(steps)) > 2 * (FILLING + SETTLED)
    assert steps[-1].level.select == "lowrank"
    assert steps[-1].facts.residual < 0.2
