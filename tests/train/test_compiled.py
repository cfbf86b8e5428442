"""Compiled models: a DDP model inside `torch.compile`, as Accelerate returns it, is attached like the model inside."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import gradwire
from tests.train.jobs import batch, flat, same_everywhere, small_net
from tests.train.ranks import Ranks


def compiled(rank: int, world: int) -> dict[str, int]:
    """Attach to the compiled model and train it; the levels that were used, if the replicas are equal."""
    net = small_net()
    model = torch.compile(DistributedDataParallel(net), backend="eager")
    handle = gradwire.attach(model, "int8")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        inputs, labels = batch(rank, step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    handle.close()
    assert same_everywhere(flat(net))
    return handle.summary().levels


def test_a_compiled_model_is_attached_like_the_one_inside(ranks: Ranks) -> None:
    assert ranks.run(2, compiled) == [{"int8": 3}] * 2


def inductor(rank: int, world: int) -> dict[str, int]:
    """As above, compiled to machine code, with the graph split at DDP's buckets."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
    model = torch.compile(DistributedDataParallel(net, bucket_cap_mb=0.3), backend="inductor")
    handle = gradwire.attach(model, "int8")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        inputs = torch.randn(8, 256, generator=torch.Generator().manual_seed(10 * rank + step))
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    handle.close()
    assert same_everywhere(flat(net))
    return handle.summary().levels


@pytest.mark.slow
def test_a_model_compiled_by_inductor_sends_its_buckets(ranks: Ranks) -> None:
    first, second = ranks.run(2, inductor, timeout=150)
    assert first == second
    assert set(first) == {"int8"}
    assert first["int8"] > 3, "several buckets a step"
