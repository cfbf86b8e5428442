"""Local peers: torch's post-local SGD as torch itself trains, torchft's DiLoCo as its steps are in plain torch."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

from gradwire.simulate.workers import Workers
from harness.progress.local_peers import local_steps_of
from harness.progress.runs import Setup, Work, each_of
from harness.progress.tasks import task_of
from tests.train.ranks import Ranks

STEPS, HOSTS, EVERY = 20, 2, 4


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small matrices: threads would wait for each other on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def modelled(name: str) -> Work:
    setup = Setup(STEPS, hosts=HOSTS)
    return Work(setup.settings("local", task="mlp", level=f"{name}:{EVERY}", seed=1), setup)


def post_local_sgd(rank: int, world: int, synchronous: int) -> tuple[list[float], list[int]]:
    """torch's own: the losses of all steps, averaged over ranks, and after which steps it averaged weights."""
    workers = Workers(task_of("mlp", STEPS, None), world, seed=1)
    task, model = workers.task, DistributedDataParallel(workers.model)
    state = PostLocalSGDState(None, None, start_localSGD_iter=synchronous, post_local_gradient_allreduce=False)
    model.register_comm_hook(state, post_localSGD_hook)
    averager = PeriodicModelAverager(period=EVERY, warmup_steps=synchronous)
    losses, averaged = [], []
    for step in range(1, STEPS + 1):
        workers.optimizer.zero_grad()
        loss = task.loss(model, *next(workers._batches[rank]))
        loss.backward()
        task.before_step(workers.parameters)
        workers.optimizer.step()
        before = workers.parameters[0].detach().clone()
        averager.average_parameters(model.parameters())
        if not torch.equal(before, workers.parameters[0]):
            averaged.append(step)
        shown = loss.detach() / world
        dist.all_reduce(shown)
        losses.append(float(shown))
    return losses, averaged


def test_post_local_sgd_has_the_losses_of_torchs_own_and_averages_after_the_same_steps(ranks: Ranks) -> None:
    peer, every = local_steps_of(f"post-local-sgd:{EVERY}")
    assert peer is not None
    assert (every, peer.synchronous_steps(STEPS), peer.synchronous_steps(5000)) == (EVERY, 2, 100)
    trained = modelled("post-local-sgd").run()
    losses, averaged = ranks.run(HOSTS, post_local_sgd, 2)[0]
    assert trained["losses"] == pytest.approx(losses, rel=1e-3)
    kinds = [one[0] for one in each_of(trained["traffic"])]
    assert not any(isinstance(one, bool) for one in kinds[:2]), "gradients are exchanged at first"
    assert [step for step, one in enumerate(kinds, 1) if one is True] == averaged == list(range(3, STEPS + 1, EVERY))


def test_diloco_has_the_losses_of_its_steps_in_plain_torch() -> None:
    """Pseudo-gradients by the backup of the weights, their mean, then SGD with Nesterov momentum, 0.7 / 0.9."""
    workers = Workers(task_of("mlp", STEPS, None), HOSTS, seed=1)
    task, shared = workers.task, copy.deepcopy(workers.model)
    models = [copy.deepcopy(workers.model) for _ in range(HOSTS)]
    inner = [task.optimizer(list(model.parameters())) for model in models]
    schedules = [task.schedule(one) for one in inner]
    outer = torch.optim.SGD(shared.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    losses = []
    for step in range(1, STEPS + 1):
        found = []
        for rank, (model, optimizer, schedule) in enumerate(zip(models, inner, schedules, strict=True)):
            optimizer.zero_grad()
            loss = task.loss(model, *next(workers._batches[rank]))
            loss.backward()
            task.before_step(list(model.parameters()))
            optimizer.step()
            schedule.step()
            found.append(float(loss.detach()))
        losses.append(sum(found) / HOSTS)
        if step % EVERY == 0:
            with torch.no_grad():
                for one, *own in zip(shared.parameters(), *(model.parameters() for model in models), strict=True):
                    one.grad = one - torch.stack(own).mean(0)
            outer.step()
            for model in models:
                model.load_state_dict(shared.state_dict())
    trained = modelled("torchft-diloco").run()
    assert trained["losses"] == pytest.approx(losses, rel=1e-3)
    kinds = [one[0] for one in each_of(trained["traffic"])]
    assert kinds == [False, False, False, True] * (STEPS // EVERY)
