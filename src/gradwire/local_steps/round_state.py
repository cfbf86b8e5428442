"""Round state: what a checkpoint needs beside residuals, so that training continues in the middle of a round.

    global, buffers, outer      as they were applied last; equal on all ranks
    step_in_round, steps, unsent    counts (local_steps/rounds.py); equal on all ranks
    local                       where this rank made steps of its own: its own weights and buffers
    flight                      where an exchange was in flight: the mean that arrived, which is equal on all ranks, and
                                this rank's weights when it was sent

A state is saved when the exchange in flight has arrived, which may take a moment. Loaded by as many ranks as saved it,
training continues to the bit (with the inner optimizer's state of every rank). Another number of ranks continues from
the mean of the old ranks' local weights: what they would synchronise is kept.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from gradwire.errors import ConfigError
from gradwire.local_steps import flight_state
from gradwire.local_steps.mean_state import mean_by_name
from gradwire.local_steps.rounds import Rounds

KEY = "local_steps"


def state_of(rounds: Rounds) -> dict[str, Any]:
    flight = flight_state.state_of(rounds)
    state = {
        "steps": rounds.steps,
        "step_in_round": rounds.step_in_round,
        "unsent": list(rounds.unsent),
        "global": rounds.weights.global_state(),
        "buffers": rounds.buffers.state(),
        "outer": copy.deepcopy(rounds.outer.state_dict()),
        **rounds.state(),
    }
    if rounds.pending:
        state["local"] = {"weights": rounds.weights.local_state(), "buffers": rounds.buffers.own()}
    return state if flight is None else {**state, "flight": flight}


def check_states(rounds: Rounds, states: Sequence[Mapping[str, Any]]) -> None:
    """ConfigError where the states are of another model, have residuals of gradients, or other fragments."""
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
        flight_state.check(rounds, state[KEY])
    if len({"flight" in state[KEY] for state in states}) > 1:
        raise ConfigError(
            "load_state_dict: some ranks saved these states with a fragment in flight and others without; save after "
            "handle.synchronise(), or load them with as many ranks, each its own"
        )


def load(rounds: Rounds, states: Sequence[Mapping[str, Any]]) -> None:
    """Replace weights, buffers, outer state and counts. `states` is this rank's own, or those of all old ranks."""
    saved = [state[KEY] for state in states]
    first = saved[0]
    rounds.exchange.drop()
    rounds.weights.load_global(first["global"])
    rounds.buffers.load_saved(first["buffers"])
    rounds.outer.load_state_dict(copy.deepcopy(first["outer"]))  # torch keeps the tensors that it is given
    rounds.steps, rounds.step_in_round = int(first["steps"]), int(first["step_in_round"])
    unsent = list(first.get("unsent", [rounds.step_in_round]))
    rounds.unsent = unsent if len(unsent) == len(rounds.unsent) else [0] * len(rounds.unsent)
    rounds.load_state(saved)
    weights = _weights(saved)
    if any("local" in one for one in saved):
        local = [_local(one) for one in saved]
        rounds.weights.load_local(mean_by_name([one["weights"] for one in local], weights))
        rounds.buffers.load(mean_by_name([one["buffers"] for one in local], weights))
    else:
        rounds.weights.reset_local()
        rounds.buffers.load(first["buffers"])
    if "flight" in first:
        flight_state.load(rounds, [one["flight"] for one in saved], weights)


def _local(state: Mapping[str, Any]) -> Mapping[str, Mapping[str, Tensor]]:
    """Weights and buffers of the rank that saved this: the global ones where it had made no step of its own."""
    return state.get("local") or {"weights": state["global"], "buffers": state["buffers"]}


def _weights(saved: Sequence[Mapping[str, Any]]) -> list[float] | None:
    """The weights of old ranks that made different numbers of steps; None for equal ones."""
    steps = [float(max(one.get("made", [0]))) for one in saved]
    return steps if sum(steps) > 0 else None
