"""Reducing rows into an output that may be one of them."""

from __future__ import annotations

import pytest
import torch

from gradwire.backend.reduce_ops import fold


@pytest.mark.parametrize("index", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("reduce_op", ["sum", "avg", "max"])
def test_the_output_may_be_one_of_the_rows(reduce_op: str, index: int | None) -> None:
    rows = torch.tensor([[1.0, 8.0], [20.0, 40.0], [300.0, 0.0], [7.0, 4000.0]])
    wanted = {"sum": rows.sum(0), "avg": rows.mean(0), "max": rows.max(0).values}[reduce_op]
    out = torch.empty(2) if index is None else rows[index]
    fold(reduce_op, [*rows], out)  # every row and `out` are tensors of their own over the same memory
    assert torch.equal(out, wanted)
