"""Folding rows into a place that may be one of them."""

from __future__ import annotations

import pytest
import torch

from gradwire.backend.reduce_ops import fold


@pytest.mark.parametrize("place", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("how", ["sum", "avg", "max"])
def test_a_result_may_lie_where_one_of_its_rows_does(how: str, place: int | None) -> None:
    rows = torch.tensor([[1.0, 8.0], [20.0, 40.0], [300.0, 0.0], [7.0, 4000.0]])
    wanted = {"sum": rows.sum(0), "avg": rows.mean(0), "max": rows.max(0).values}[how]
    out = torch.empty(2) if place is None else rows[place]
    fold(how, [*rows], out)  # every row and `out` are tensors of their own over the same memory
    assert torch.equal(out, wanted)
