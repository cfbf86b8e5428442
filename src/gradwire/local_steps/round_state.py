"""Round state: what a checkpoint needs beside residuals, so that training continues in the middle of a round.

    global, buffers, outer      of the last end of a round; equal on all ranks
    step_in_round, steps        equal on all ranks
    local                       in the middle of a round: this rank's own weights and buffers

Loaded by as many ranks as saved it, training continues to the bit (with the inner optimizer's state of every rank).
Another number of ranks continues from the mean of the old ranks' local weights: what they would synchronise is kept.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire.errors import ConfigError
from gradwire.local_steps.rounds import Rounds

KEY = "local_steps"


def state_of(rounds: Rounds) -> dict[str, Any]:
    state = {
        "steps": rounds.steps,
        "step_in_round": rounds.step_in_round,
        "global": rounds.weights.global_state(),
        "buffers": rounds.buffers.state(),
        "outer": copy.deepcopy(rounds.outer.state_dict()),
    }
    if rounds.step_in_round:
        state["local"] = {"weights": rounds.weights.local_state(), "buffers": rounds.buffers.own()}
    return state


def check_states(rounds: Rounds, states: Sequence[Mapping[str, Any]]) -> None:
    """ConfigError where the states are of another model, or have residuals of gradients."""
    expected = rounds.weights.shapes()
    for state in states:
        if KEY not in state:
            raise ConfigError(
                "load_state_dict: this state was saved without sync_every; its residuals are of gradients and not of "
                "weights. Load the model and the optimizer only, and save a new state"
            )
        found = {name: tuple(value.shape) for name, value in state[KEY]["global"].items()}
        if found != expected:
            name = next(name for name in [*expected, *found] if found.get(name) != expected.get(name))
            raise ConfigError(
                f"load_state_dict: {name!r} has shape {found.get(name)} in the state and {expected.get(name)} in the "
                "model: the state belongs to another model; load the one of this model"
            )


def load(rounds: Rounds, states: Sequence[Mapping[str, Any]]) -> None:
    """Replace weights, buffers, outer state and counts. `states` is this rank's own, or those of all old ranks."""
    saved = [state[KEY] for state in states]
    first = saved[0]
    rounds.weights.load_global(first["global"])
    rounds.buffers.load_saved(first["buffers"])
    rounds.outer.load_state_dict(copy.deepcopy(first["outer"]))  # torch keeps the tensors that it is given
    rounds.steps, rounds.step_in_round = int(first["steps"]), int(first["step_in_round"])
    if "local" in first:
        rounds.weights.load_local(_mean([one["local"]["weights"] for one in saved]))
        rounds.buffers.load(_mean([one["local"]["buffers"] for one in saved]))
    else:
        rounds.weights.reset_local()
        rounds.buffers.load(first["buffers"])


def _mean(named: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean by name; values that are no floating-point numbers are the first one's."""
    if len(named) == 1:
        return dict(named[0])
    return {
        name: torch.stack([one[name] for one in named]).mean(0) if value.is_floating_point() else value
        for name, value in named[0].items()
    }
