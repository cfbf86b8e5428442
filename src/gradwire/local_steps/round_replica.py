"""Round replica: what a process receives that joins at the end of a round, where ranks may be lost and rejoin.

    global, buffers, outer    as of the beginning of the round that ends now
    step, steps, sync_every   of the session, of the inner optimizers, and of the round that ends now
    others                    what was passed to `hand_over`: the sender's inner optimizer, a learning-rate schedule

It is sent while the training threads of all ranks wait for the mean of the round. The new process has sent nothing, or
what it sent was dropped; it receives the mean like the others, and its outer optimizer makes the same step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from torch import Tensor

from gradwire.errors import IntegrityError
from gradwire.local_steps.rounds import Rounds
from gradwire.sites.replica_state import Stateful, decode, encode

KEYS: Final = frozenset({"step", "steps", "sync_every", "global", "buffers", "outer", "others"})


class RoundReplica:
    """The replica of one rank, as `TransferableState`."""

    def __init__(self, rounds: Rounds, others: Sequence[Stateful]) -> None:
        self._rounds, self._others = rounds, others
        self.save(0)  # a state that cannot be sent is an error now, not when a rank rejoins

    def save(self, step: int) -> tuple[bytes, list[Tensor]]:
        rounds, tensors = self._rounds, list[Tensor]()
        state = {
            "step": step,
            "steps": rounds.steps,
            "sync_every": rounds.sync_every,
            "global": rounds.weights.global_state(),
            "buffers": rounds.buffers.state(),
            "outer": rounds.outer.state_dict(),
            "others": [other.state_dict() for other in self._others],
        }
        return msgspec.msgpack.encode(encode(state, tensors)), tensors

    def load(self, header: bytes, body: Tensor) -> None:
        """Overwrite this replica. IntegrityError, before anything is changed, for the state of another model."""
        rounds, received = self._rounds, decode(header, body, KEYS)
        self._check(received)
        rounds.weights.load_global(received["global"])
        rounds.buffers.load_saved(received["buffers"])
        rounds.outer.load_state_dict(received["outer"])
        for other, state in zip(self._others, received["others"], strict=True):
            other.load_state_dict(state)
        rounds.sync_every = int(received["sync_every"])
        rounds.take_place(int(received["step"]), int(received["steps"]))

    def _check(self, received: Mapping[str, Any]) -> None:
        rounds = self._rounds
        own = {"global": rounds.weights.global_state(), "buffers": rounds.buffers.state()}
        if any(_forms(received[part]) != _forms(own[part]) for part in own):
            raise IntegrityError(
                "the received replica state belongs to another model; start this rank with the script and the settings "
                "of the others"
            )
        if len(received["others"]) != len(self._others):
            found, expected = len(received["others"]), len(self._others)
            raise IntegrityError(
                f"hand_over: the other ranks passed {found} objects, this one {expected}; pass the same on every rank"
            )


def _forms(named: Mapping[str, Tensor]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (str(value.dtype), tuple(value.shape)) for name, value in named.items()}
