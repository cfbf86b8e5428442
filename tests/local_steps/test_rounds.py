"""Rounds over loopback lanes: counts, equal replicas, and nothing lost."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradwire.config import OuterConfig
from gradwire.errors import ConfigError
from tests.local_steps.worlds import LocalWorld

AVERAGE = OuterConfig(kind="average")


def gradient(rank: int, step: int) -> Tensor:
    return 0.01 * torch.randn(64, 128, generator=torch.Generator().manual_seed(100 * rank + step))


@pytest.mark.parametrize("level", ["off", "int8", "topk:0.05", "sharedk:0.1", "lowrank:2"])
@pytest.mark.parametrize("world_size", [2, 4])
def test_replicas_are_bit_identical_at_the_end_of_every_round(level: str, world_size: int) -> None:
    world = LocalWorld(world_size, level, every=3)
    for step in range(9):
        world.step(lambda rank, step=step: gradient(rank, step))  # type: ignore[misc]
        first, *others = world.weights()
        assert all(torch.equal(first, other) for other in others) == (step % 3 == 2)
    world.close()


def test_averaging_rounds_of_one_step_are_synchronous_sgd() -> None:
    world = LocalWorld(2, "off", every=1, outer=AVERAGE)
    expected = world.modules[0].weight.detach().clone()
    for step in range(5):
        world.step(lambda rank, step=step: gradient(rank, step))  # type: ignore[misc]
        expected -= (gradient(0, step) + gradient(1, step)) / 2
    assert torch.allclose(world.modules[0].weight, expected, atol=1e-6)
    world.close()


def test_what_a_sparse_level_leaves_out_waits_in_residuals() -> None:
    """Global weights and the mean of the residuals together are where averaging without compression would be."""
    world = LocalWorld(2, "topk:0.05", every=2, outer=AVERAGE)
    expected = world.modules[0].weight.detach().double()
    for step in range(8):
        world.step(lambda rank, step=step: gradient(rank, step))  # type: ignore[misc]
        expected -= (gradient(0, step) + gradient(1, step)).double() / 2
    left = world.sessions.residuals()["weight"].view(64, 128) / 2
    assert left.norm() > 0
    assert torch.allclose(world.modules[0].weight.double() - left, expected, atol=1e-5)
    world.close()


def test_a_round_may_end_early_and_the_next_one_has_its_full_length() -> None:
    world = LocalWorld(2, "off", every=3)
    world.step(lambda rank: gradient(rank, 0))
    world.sessions.each(lambda rank: world.rounds[rank].end_round("the test ends it"))
    assert [one.step_in_round for one in world.rounds] == [0, 0]
    for step in (1, 2):
        world.step(lambda rank, step=step: gradient(rank, step))  # type: ignore[misc]
    assert [(one.step_in_round, one.steps) for one in world.rounds] == [(2, 3)] * 2
    assert [session.step for session in world.sessions.sessions] == [1, 1]
    world.close()


def test_a_step_inside_global_weights_is_refused_and_so_is_a_second_swap() -> None:
    world = LocalWorld(1, "off", every=3)
    (rounds,) = world.rounds
    with rounds.global_weights():
        with pytest.raises(ConfigError, match="the optimizer made a step inside"):
            rounds.count_step()
        with pytest.raises(ConfigError, match="already"), rounds.global_weights():
            pass
    rounds.count_step()
    assert rounds.steps == 1
    world.close()
