"""Footprint: what ranks run to measure gradwire's memory between steps and its processor time when idle."""

from __future__ import annotations

import gc
import time

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.units import Bytes

# Seconds over which an idle process is measured.
IDLE_SECONDS = 1.0


def tensor_bytes() -> Bytes:
    """Bytes of all tensors that are alive in this process, views counted once."""
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return Bytes(sum(storages.values()))


def train(model: nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 1024)).sum().backward()
        optimizer.step()


def memory(rank: int, world: int, level: str) -> tuple[int, int]:
    """Bytes of the gradient, and the additional bytes of tensors after attached steps compared to plain ones."""
    net = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4)))
    gradient = sum(parameter.nbytes for parameter in net.parameters())
    model = DistributedDataParallel(net, bucket_cap_mb=5, gradient_as_bucket_view=True)
    train(model, 3)
    plain = tensor_bytes()
    attached = gradwire.attach(model, level)
    train(model, 4)
    more = tensor_bytes() - plain
    attached.close()
    return gradient, more


def idle(rank: int, world: int, level: str) -> float:
    """Processor seconds that all threads of an attached process use in a second without training."""
    model = DistributedDataParallel(nn.Linear(1024, 1024))
    handle = gradwire.attach(model, level)
    train(model, 3)
    torch.distributed.barrier()
    began = time.process_time()
    time.sleep(IDLE_SECONDS)
    used = time.process_time() - began
    torch.distributed.barrier()
    handle.close()
    return used
