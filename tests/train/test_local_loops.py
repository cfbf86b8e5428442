"""Local steps in training loops of several kinds, with whole rounds and with fragments, against plain torch."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import gradwire
from tests.train.jobs import batch, flat, same_everywhere, small_net
from tests.train.local_jobs import Tied, nesterov, sgd
from tests.train.ranks import Ranks

WHOLE = {"sync_every": 4}
FRAGMENTS = {"sync_every": 4, "num_fragments": 2, "fragment_sync_delay": 1}


def two_optimizers(net: nn.Module) -> list[torch.optim.Optimizer]:
    """Matrices by SGD, biases by AdamW."""
    matrices = [one for one in net.parameters() if one.ndim == 2]
    others = [one for one in net.parameters() if one.ndim != 2]
    return [torch.optim.SGD(matrices, lr=0.1, momentum=0.9), torch.optim.AdamW(others, lr=0.01)]


def train(model: nn.Module, optimizers: list[torch.optim.Optimizer], rank: int, step: int) -> None:
    inputs, labels = batch(rank, step)
    F.cross_entropy(model(inputs), labels).backward()
    for one in optimizers:
        one.step()
        one.zero_grad()


def several(rank: int, world: int) -> tuple[Tensor, Tensor, list[bool]]:
    """Two optimizers: gradwire's weights and those of the same loop in plain torch; replicas after `detach`."""
    net = small_net()
    model = DistributedDataParallel(net)
    optimizers = two_optimizers(net)
    handle = gradwire.attach(model, "off", optimizer=optimizers, **WHOLE)  # type: ignore[arg-type]
    for step in range(8):
        train(model, optimizers, rank, step)
    ours = flat(net)
    train(model, optimizers, rank, 8)
    handle.detach()
    agreed = []
    for step in range(9, 12):
        train(model, optimizers, rank, step)
        agreed.append(same_everywhere(flat(net)))
    handle.close()
    return ours, _reference(rank, world), agreed


def _reference(rank: int, world: int) -> Tensor:
    net = small_net()
    optimizers, shared = two_optimizers(net), [one.detach().clone().requires_grad_() for one in net.parameters()]
    outer = nesterov(shared)
    for step in range(8):
        train(net, optimizers, rank, step)
        if step % 4 == 3:
            for one, own in zip(shared, net.parameters(), strict=True):
                one.grad = (one.detach() - own.detach()) / world
                dist.all_reduce(one.grad)
            outer.step()
            for one, own in zip(shared, net.parameters(), strict=True):
                own.detach().copy_(one.detach())
    return flat(net)


def loop(rank: int, world: int, kind: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Nine steps of a loop: whether the shared weights agree after each, and the weights after `synchronise`."""
    net = Tied() if kind == "tied" else small_net()
    inside = kind == "compiled"
    model = DistributedDataParallel(torch.compile(net, backend="eager") if inside else net)
    optimizer = sgd(net)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9) if kind == "schedule" else None
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=kind == "scaler")
    handle = gradwire.attach(model, "int8", optimizer=optimizer, scaler=scaler, **settings)
    agreed = []
    for step in range(9):
        optimizer.zero_grad()
        for micro in range(2 if kind == "accumulation" else 1):
            inputs, labels = batch(rank, 10 * step + micro)
            overflow = torch.inf if kind == "scaler" and rank == 1 and step in (1, 3, 4) else 1.0
            with model.no_sync() if kind == "accumulation" and micro == 0 else contextlib.nullcontext():
                scaler.scale(F.cross_entropy(model(inputs), labels) * overflow).backward()
        scaler.step(optimizer)
        scaler.update()
        if schedule is not None:
            schedule.step()
        with handle.global_weights():
            agreed.append(same_everywhere(flat(net)))
    outer_steps = handle.summary().rounds.count
    handle.synchronise()
    tied = not isinstance(net, Tied) or net.last.weight is net.first.weight
    result = {"agreed": all(agreed), "steps": handle.step, "outer": outer_steps, "tied": tied}
    result |= {"same": same_everywhere(flat(net)), "finite": bool(flat(net).isfinite().all())}
    handle.close()
    return result


def test_several_optimizers_train_as_in_plain_torch_and_stay_equal_after_detach(ranks: Ranks) -> None:
    for ours, reference, agreed in ranks.run(2, several):
        assert torch.allclose(ours, reference, atol=1e-6)
        assert agreed == [True] * 3


@pytest.mark.parametrize("kind", ["plain", "tied", "compiled", "schedule", "accumulation", "scaler"])
@pytest.mark.parametrize(("settings", "outer"), [(WHOLE, 2), (FRAGMENTS, 4)], ids=["whole", "fragments"])
def test_ranks_share_their_weights_after_the_same_steps_of_every_loop(
    ranks: Ranks, kind: str, settings: dict[str, Any], outer: int
) -> None:
    """With fragments the third and fourth are applied after steps 7 and 9."""
    expected = {"agreed": True, "steps": 9, "outer": outer, "tied": True, "same": True, "finite": True}
    assert ranks.run(2, loop, kind, settings) == [expected] * 2
