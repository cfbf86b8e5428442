"""A replica state that one rank saved is loaded by another, or nothing changes there."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from gradwire.errors import ConfigError, IntegrityError
from gradwire.sites.replica_state import BucketLayout, ReplicaState


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1).contiguous().view(torch.uint8) for tensor in tensors])


def test_a_loaded_state_equals_the_saved_one() -> None:
    torch.manual_seed(0)
    first, second = (nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)) for _ in range(2))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (first, second)]
    first(torch.randn(4, 3)).sum().backward()
    optimizers[0].step()
    steps: list[int] = []
    header, tensors = ReplicaState(first, [optimizers[0]], steps.append).save(7)
    ReplicaState(second, [optimizers[1]], steps.append).load(header, flat(tensors))
    assert steps == [7]
    assert all(
        torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )
    momenta = [[s["momentum_buffer"] for s in o.state_dict()["state"].values()] for o in optimizers]
    assert all(torch.equal(a, b) for a, b in zip(*momenta, strict=True))


def test_a_state_of_another_model_or_an_invalid_one_changes_nothing() -> None:
    one, other = nn.Linear(3, 2), nn.Linear(3, 3)
    before = other.weight.detach().clone()
    header, tensors = ReplicaState(one, [], lambda step: None).save(0)
    receiver = ReplicaState(other, [], lambda step: None)
    for bad in (header, header[:-3], b"\x93junk", b""):
        with pytest.raises(IntegrityError):
            receiver.load(bad, flat(tensors))
    assert torch.equal(other.weight, before)


def test_a_state_that_cannot_be_sent_is_named_at_once() -> None:
    class Odd:
        def state_dict(self) -> dict[str, object]:
            return {"file": object()}

        def load_state_dict(self, state: object) -> None: ...

    with pytest.raises(ConfigError, match="holds a object"):
        ReplicaState(nn.Linear(2, 2), [Odd()], lambda step: None)


def test_a_replica_with_other_buckets_is_unchanged() -> None:
    sender, receiver = nn.Linear(2, 2), nn.Linear(2, 2)
    before = receiver.weight.clone()
    header, tensors = ReplicaState(sender, [], lambda step: None, BucketLayout({0: ("weight", "bias")})).save(0)
    with pytest.raises(IntegrityError, match="buckets hold other parameters"):
        ReplicaState(receiver, [], lambda step: None, BucketLayout({0: ("bias", "weight")})).load(header, flat(tensors))
    assert torch.equal(receiver.weight, before)
