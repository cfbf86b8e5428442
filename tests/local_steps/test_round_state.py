"""What a checkpoint has of a round."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gradwire.errors import ConfigError
from gradwire.local_steps import round_state
from tests.local_steps.test_rounds import gradient
from tests.local_steps.worlds import LocalWorld


def saved_after(steps: int, every: int = 3) -> tuple[list[dict[str, Any]], list[torch.Tensor]]:
    world = LocalWorld(2, "off", every)
    for step in range(steps):
        world.step(lambda rank, step=step: gradient(rank, step))  # type: ignore[misc]
    states = [{round_state.KEY: round_state.state_of(one)} for one in world.rounds]
    weights = world.weights()
    world.close()
    return states, weights


def test_local_weights_are_saved_in_the_middle_of_a_round_only() -> None:
    assert "local" in saved_after(4)[0][0][round_state.KEY]
    assert "local" not in saved_after(3)[0][0][round_state.KEY]


@pytest.mark.parametrize("steps", [3, 4])
def test_a_loaded_round_continues_as_the_saved_one(steps: int) -> None:
    states, weights = saved_after(steps)
    _, expected = saved_after(steps + 2)
    world = LocalWorld(2, "off", 3)
    for rounds, state in zip(world.rounds, states, strict=True):
        round_state.check_states(rounds, [state])
        round_state.load(rounds, [state])
    assert all(map(torch.equal, world.weights(), weights))
    for step in (steps, steps + 1):
        world.step(lambda rank, step=step: gradient(rank, step))  # type: ignore[misc]
    assert all(map(torch.equal, world.weights(), expected))
    world.close()


def test_a_saved_state_does_not_change_with_training() -> None:
    world = LocalWorld(2, "off", 1)
    world.step(lambda rank: gradient(rank, 0))
    state = round_state.state_of(world.rounds[0])
    momentum = state["outer"]["state"][0]["momentum_buffer"].clone()
    kept = state["global"]["weight"].clone()
    world.step(lambda rank: gradient(rank, 1))
    assert torch.equal(state["outer"]["state"][0]["momentum_buffer"], momentum)
    assert torch.equal(state["global"]["weight"], kept)
    world.close()


def test_states_of_synchronous_jobs_and_of_other_models_are_refused() -> None:
    world = LocalWorld(1, "off", 3)
    (rounds,) = world.rounds
    with pytest.raises(ConfigError, match="saved without sync_every"):
        round_state.check_states(rounds, [{"residuals": {}}])
    other = {round_state.KEY: {"global": {"weight": torch.zeros(2, 2), "bias": torch.zeros(64)}}}
    with pytest.raises(ConfigError, match=r"'weight' has shape \(2, 2\)"):
        round_state.check_states(rounds, [other])
    world.close()
