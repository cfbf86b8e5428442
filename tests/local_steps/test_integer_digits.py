"""Integers as values whose mean is theirs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradwire.local_steps.integer_digits import from_digits, to_digits


def mean(*ranks: Tensor) -> Tensor:
    """As trees form it: a float32 sum, divided by the number of ranks."""
    total = torch.zeros_like(to_digits(ranks[0]))
    for one in ranks:
        total += to_digits(one)
    return from_digits(total / len(ranks), ranks[0])


@pytest.mark.parametrize("count", [1, 3, 32, 1000])
def test_what_is_equal_on_all_ranks_stays_as_it_is(count: int) -> None:
    values = torch.tensor([0, 1, -1, 5_000_011, 2**40 + 7, -(2**40) - 7, 2**63 - 1, -(2**63)])
    assert torch.equal(mean(*[values] * count), values)


def test_different_integers_become_their_rounded_mean() -> None:
    found = mean(torch.tensor([[3, -10], [2047, 0]]), torch.tensor([[6, -20], [2049, 1_000_000]]))
    assert found.tolist() in ([[4, -15], [2048, 500_000]], [[5, -15], [2048, 500_000]])


def test_other_types_keep_theirs() -> None:
    flags = torch.tensor([True, False])
    assert mean(flags, flags, flags).tolist() == [True, False]
    small = torch.tensor([-128, 127], dtype=torch.int8)
    assert torch.equal(mean(small, small), small)
