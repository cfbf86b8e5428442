"""What a process receives that joins at the end of a round."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from gradwire.errors import IntegrityError
from gradwire.local_steps.round_replica import RoundReplica
from gradwire.tree.state_transfer import frames_of
from tests.local_steps.test_outer_exchange import OneRank


def sent(replica: RoundReplica, step: int) -> tuple[bytes, torch.Tensor]:
    header, tensors = replica.save(step)
    frames = list(frames_of(torch.empty(0, dtype=torch.uint8), tensors))
    return header, torch.cat(frames)


def trained(steps: int) -> OneRank:
    one = OneRank(0.0, 0, count=1)
    one.train(steps)
    return one


def with_optimizer(one: OneRank) -> Any:
    optimizer = torch.optim.SGD(one.module.parameters(), lr=0.1, momentum=0.9)
    for parameter in one.module.parameters():
        parameter.grad = torch.full_like(parameter, 0.5)
    optimizer.step()
    return optimizer


def test_a_new_process_has_the_global_weights_the_counts_and_the_senders_optimizer() -> None:
    here, new = trained(6), OneRank(0.0, 0, count=1)
    optimizer, fresh = with_optimizer(here), torch.optim.SGD(new.module.parameters(), lr=0.1, momentum=0.9)
    replica = RoundReplica(here.rounds, [optimizer])
    RoundReplica(new.rounds, [fresh]).load(*sent(replica, step=4))
    assert (new.rounds.steps, new.session.step) == (6, 5)
    for name, value in here.rounds.weights.global_state().items():
        assert torch.equal(new.rounds.weights.global_state()[name], value)
    buffers = [state["momentum_buffer"] for state in fresh.state.values()]
    assert all(bool((one == 0.5).all()) for one in buffers)
    assert len(buffers) == 6


def test_the_state_of_another_model_or_another_call_changes_nothing() -> None:
    here, other = trained(6), OneRank(0.0, 0, count=1)
    header, body = sent(RoundReplica(here.rounds, []), step=4)
    other.rounds.weights.buckets[0].flat.fill_(3.0)
    with pytest.raises(IntegrityError, match="hand_over: the other ranks passed 0 objects, this one 1"):
        RoundReplica(other.rounds, [nn.Linear(1, 1)]).load(header, body)
    other.rounds.weights.global_state = lambda: {"0.weight": torch.zeros(2, 2)}  # type: ignore[method-assign]
    with pytest.raises(IntegrityError, match="another model"):
        RoundReplica(other.rounds, []).load(header, body)
    assert bool((other.rounds.weights.buckets[0].flat == 3.0).all())
    assert other.rounds.steps == 0


def test_bytes_that_are_no_state_are_an_integrity_error() -> None:
    replica = RoundReplica(OneRank(0.0, 0, count=1).rounds, [])
    for header in (b"", b"\xc1", b"\x80", b"\x92\xa4dict\x90"):
        with pytest.raises(IntegrityError):
            replica.load(header, torch.zeros(4, dtype=torch.uint8))
