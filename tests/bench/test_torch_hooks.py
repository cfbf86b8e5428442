"""Torch's hooks in virtual time: what they restore, what waits in an error, and what they send."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradwire.errors import ConfigError
from gradwire.level import Level
from gradwire.types import Bucket, ParameterSlice
from harness.progress.tasks import task_of
from harness.progress.torch_hooks import (
    FP16_WORK,
    POWERSGD_START,
    Fp16Hook,
    HookWorkers,
    PowerSgdHook,
    hook_of,
    ring_sum,
    work_of,
    worth_factoring,
)

MATRIX = ParameterSlice("weight", 0, (20, 30), 600)
VECTOR = ParameterSlice("bias", 600, (20,), 20)
BUCKET = Bucket(0, 1, 620, 4, (MATRIX, VECTOR), True)


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_a_ring_rounds_every_partial_sum_and_starts_each_part_at_another_rank() -> None:
    # 2048 + 1 is not a half; 1 + 1 is. Which part is rounded depends on where its sum starts.
    tensors = [torch.tensor([2048.0, 2048.0]).half(), torch.tensor([1.0, 1.0]).half()]
    assert ring_sum(tensors).tolist() == [2048.0, 2048.0]
    three = [torch.full((3,), value).half() for value in (2048.0, 1.0, 1.0)]
    assert ring_sum(three).tolist() == [2048.0, 2050.0, 2048.0]


def test_the_fp16_hook_divides_first_and_sends_half_the_bytes() -> None:
    gradients = [torch.full((620,), 60000.0), torch.full((620,), 60000.0)]
    assert Fp16Hook().reduce(BUCKET, gradients) == (1240,)
    assert gradients[0].tolist() == pytest.approx([60000.0] * 620, rel=1e-3)


def test_powersgd_starts_after_steps_of_plain_all_reduce() -> None:
    hook = PowerSgdHook(1, start=1)
    first, second = ([random(620, seed=seed) for seed in (1, 2)] for _ in range(2))
    mean = (first[0] + first[1]) / 2
    assert hook.reduce(BUCKET, first) == (2480,)
    assert torch.equal(first[0], mean)
    assert hook.reduce(BUCKET, second) == (80, 80, 120)
    assert not torch.allclose(second[0][:600], mean[:600], atol=0.1)
    assert torch.allclose(second[0][600:], mean[600:])


def test_powersgd_restores_a_mean_of_its_rank_exactly() -> None:
    hook = PowerSgdHook(4, start=0)
    left, right = random(20, 4), random(4, 30, seed=2)
    gradients = [torch.cat([(scale * left @ right).view(-1), torch.ones(20)]) for scale in (1.0, 3.0)]
    hook.reduce(BUCKET, gradients)
    assert torch.allclose(gradients[0][:600], (2 * left @ right).view(-1), atol=1e-4)


def test_what_powersgd_did_not_restore_waits_in_the_ranks_errors() -> None:
    hook = PowerSgdHook(1, start=0)
    total, restored = torch.zeros(620), torch.zeros(620)
    for step in range(5):
        gradients = [random(620, seed=10 * step + rank) for rank in (1, 2)]
        total += (gradients[0] + gradients[1]) / 2
        hook.reduce(BUCKET, gradients)
        restored += gradients[0]
    assert torch.allclose(restored + (hook.errors[0] + hook.errors[1]) / 2, total, atol=1e-4)


def test_matrices_are_factored_where_factors_are_less_than_half_as_large() -> None:
    assert worth_factoring((20, 30), 1)
    assert worth_factoring((8, 2, 3, 3), 2)
    assert worth_factoring((8, 2, 3, 3), 4) is False
    assert worth_factoring((20,), 1) is False
    assert worth_factoring((4, 400), 2) is False


def test_what_a_hook_computes_grows_with_its_rank_and_begins_when_it_does() -> None:
    assert work_of("torch-fp16") == (FP16_WORK, 0)
    (one, start), (four, _) = work_of("torch-powersgd:1"), work_of("torch-powersgd:4")
    assert FP16_WORK < one < four
    assert start == POWERSGD_START


@pytest.mark.parametrize("name", ["powersgd", "torch-powersgd:0", "torch-powersgd:x", "torch-bf16"])
def test_an_unknown_hook_is_a_config_error(name: str) -> None:
    with pytest.raises(ConfigError, match="torch-powersgd:RANK"):
        hook_of(name)


@pytest.mark.parametrize(("name", "operations"), [("torch-fp16", 1), ("torch-powersgd:4", 3)])
def test_workers_train_by_a_hook_and_say_what_it_moved(name: str, operations: int) -> None:
    hook = hook_of(name)
    if isinstance(hook, PowerSgdHook):
        hook.start = 2
    workers = HookWorkers(task_of("mlp", 10, None), 2, hook, seed=1)
    steps = [workers.train(Level()) for _ in range(12)]
    assert steps[-1].loss < steps[0].loss
    assert [len(one.chunks[0]) for one in steps[-1].traffic] == [operations] * len(workers.buckets)
    assert len(workers.buckets) == 1
