"""The (state, hook) pair: registering it is the same as attaching, and other hooks are left alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import gradwire
from gradwire.errors import ConfigError
from tests.train.ranks import Ranks


def trained(model: DistributedDataParallel, rank: int, steps: int = 3) -> Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 64, generator=generator)).square().mean().backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def wrapped() -> DistributedDataParallel:
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)))


def pair_job(rank: int, world_size: int) -> dict[str, Any]:
    model = wrapped()
    state, hook = gradwire.comm_hook("int8", transport="group")
    model.register_comm_hook(state, hook)
    by_pair = trained(model, rank)
    levels = state.handle.summary().levels
    with pytest.raises(ConfigError, match="registered with a model already"):
        wrapped().register_comm_hook(state, hook)
    state.handle.close()
    other = wrapped()
    handle = gradwire.attach(other, "int8")
    by_attach = trained(other, rank)
    handle.close()
    plain = wrapped()
    plain.register_comm_hook(None, default_hooks.allreduce_hook)
    trained(plain, rank)
    return {"pair": by_pair, "attach": by_attach, "levels": levels, "hooked": plain._comm_hooks[0][0].__name__}


def test_registering_the_pair_is_attaching(ranks: Ranks) -> None:
    first, second = ranks.run(2, pair_job)
    assert torch.equal(first["pair"], first["attach"])
    assert torch.equal(first["pair"], second["pair"])
    assert set(first["levels"]) == {"int8"}
    assert first["hooked"] == "allreduce_hook", "hooks of others are registered as before"


def test_the_pair_says_what_is_wrong_with_its_use() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'levle'"):
        gradwire.comm_hook(levle="int8")
    state, hook = gradwire.comm_hook("int8")
    with pytest.raises(ConfigError, match="not registered yet"):
        _ = state.handle
    with pytest.raises(ConfigError, match="attach"):
        hook(state, None)  # type: ignore[arg-type]


def test_the_hook_has_the_signature_that_ddp_checks() -> None:
    _, hook = gradwire.comm_hook()
    checked = DistributedDataParallel._check_comm_hook
    checked(object.__new__(DistributedDataParallel), hook)
