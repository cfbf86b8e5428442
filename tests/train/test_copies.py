"""Copies of an attached model (deepcopy, AveragedModel, torch.save) are plain DDP and do not affect the session."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import gradwire
from tests.train import jobs
from tests.train.ranks import Ranks


def _backward(model: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    model.zero_grad()
    inputs, labels = jobs.batch(rank, step)
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def _reloaded(model: DistributedDataParallel) -> DistributedDataParallel:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)  # type: ignore[no-any-return]


def _copies(rank: int, world: int, level: str) -> list[tuple[bool, int, int]]:
    """For each kind of copy: whether its gradient is plain DDP's to the bit, the session's steps before and after."""
    plain = DistributedDataParallel(jobs.small_net(), bucket_cap_mb=0.02)
    model = DistributedDataParallel(jobs.small_net(), bucket_cap_mb=0.02)
    handle = gradwire.attach(model, level)
    _backward(model, rank, 0)
    found = []
    for make in (copy.deepcopy, lambda original: AveragedModel(original).module, _reloaded):
        other = make(model)
        before = handle.step
        same = torch.equal(_backward(other, rank, 1), _backward(plain, rank, 1))
        found.append((same, before, handle.step))
        del other
    _backward(model, rank, 2)
    assert handle.step == 2, "the original still works"
    assert not handle.summary().errors
    handle.close()
    return found


def test_a_copy_is_plain_ddp_and_the_original_still_works(ranks: Ranks) -> None:
    for found in ranks.run(2, _copies, "int8"):
        assert found == [(True, 1, 1)] * 3


def _attached_copy(rank: int, world: int) -> tuple[int, int, bool]:
    model = DistributedDataParallel(jobs.small_net(), bucket_cap_mb=0.02)
    first = gradwire.attach(model, "int8")
    other = copy.deepcopy(model)
    second = gradwire.attach(other, "int8")
    gradient = _backward(other, rank, 0)
    return first.step, second.step, jobs.same_everywhere(gradient)


def test_a_copy_can_be_attached_on_its_own(ranks: Ranks) -> None:
    assert ranks.run(2, _attached_copy) == [(0, 1, True)] * 2


def _averaged(rank: int, world: int) -> bool:
    """Weight averaging next to training, as the torch documentation shows it."""
    model = DistributedDataParallel(jobs.small_net(), bucket_cap_mb=0.02)
    handle = gradwire.attach(model, "topk:0.05+int8")
    averaged = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        _backward(model, rank, step)
        optimizer.step()
        averaged.update_parameters(model)
    handle.close()
    return jobs.same_everywhere(jobs.flat(averaged.module))


def test_weights_are_averaged_beside_an_attached_model(ranks: Ranks) -> None:
    assert ranks.run(2, _averaged) == [True, True]


SAVES = """
import copy, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 2))
copy.deepcopy(model)(torch.ones(1, 4)).sum().backward()
model(torch.ones(1, 4)).sum().backward()
if dist.get_rank() == 0:
    torch.save(model, sys.argv[1])
"""

LOADS = """
import sys, torch, torch.distributed as dist
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
model = torch.load(sys.argv[1], weights_only=False)
model(torch.ones(1, 4)).sum().backward()
print(model.module.weight.grad.sum().item())
"""


def _environment(**more: str) -> dict[str, str]:
    import os

    return {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **more}


def test_a_model_saved_under_gradwire_run_is_loaded_by_a_process_without_gradwire_run(tmp_path: Path) -> None:
    saves, loads, saved = tmp_path / "saves.py", tmp_path / "loads.py", tmp_path / "model.pt"
    saves.write_text(SAVES)
    loads.write_text(LOADS)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = _environment(GRADWIRE_LEVEL="int8")
    done = _run([*torchrun, "-m", "gradwire.run", str(saves), str(saved)], environment)
    assert done.returncode == 0, done.stderr
    done = _run([sys.executable, str(loads), str(saved)], _environment())
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == 8.0


def _run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def _hook_of_a_copy(rank: int, world: int) -> tuple[bool, Any]:
    """The remembered hook of a copy, called as compiled autograd would."""
    model = DistributedDataParallel(torch.nn.Linear(3, 1))
    gradwire.attach(model, "int8")
    ((hook, state),) = copy.deepcopy(model)._comm_hooks
    gradient = torch.full((3,), float(rank + 1))
    hook(state, (gradient, model.module.weight))
    return dist.is_initialized(), gradient.tolist()


def test_the_hook_of_a_copy_does_what_plain_ddp_does(ranks: Ranks) -> None:
    assert ranks.run(2, _hook_of_a_copy) == [(True, [1.5] * 3)] * 2
