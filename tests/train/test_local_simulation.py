"""Local steps in virtual time against the same job on real ranks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.level import Level
from gradwire.simulate.local_workers import LocalWorkers
from gradwire.simulate.tasks import make_task
from tests.train.jobs import flat
from tests.train.ranks import Ranks

STEPS, EVERY, SEED = 12, 4, 5


def attached(rank: int, world: int, level: str) -> Tensor:
    """The task of virtual time, trained by a DDP model with local steps; the weights at the end."""
    task = make_task("mlp")
    torch.manual_seed(SEED)
    net = task.module()
    model = DistributedDataParallel(net)
    optimizer = task.optimizer(list(net.parameters()))
    handle = gradwire.attach(model, level, optimizer=optimizer, sync_every=EVERY)
    batches = task.batches(SEED, rank, world)
    for _ in range(STEPS):
        optimizer.zero_grad()
        task.loss(model, *next(batches)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    weights = flat(net)
    handle.close()
    return weights


def simulated(level: str) -> tuple[Tensor, Tensor]:
    """The weights at the start and at the end."""
    workers = LocalWorkers(make_task("mlp"), 2, seed=SEED)
    start = flat(workers.model).clone()
    workers.begin_local()
    for step in range(STEPS):
        workers.train_alone()
        if (step + 1) % EVERY == 0:
            workers.end_round(Level.parse(level))
    return start, flat(workers.model)


@pytest.mark.parametrize(("level", "tolerance"), [("off", 1e-5), ("int8", 0.02)])
def test_virtual_time_ends_with_the_weights_of_real_ranks(ranks: Ranks, level: str, tolerance: float) -> None:
    """int8 rounds stochastically, by random numbers of the step; its tolerance is that of its rounding."""
    start, ours = simulated(level)
    real = ranks.run(2, attached, level)
    assert torch.equal(real[0], real[1])
    assert (ours - real[0]).norm() < tolerance * (real[0] - start).norm()
