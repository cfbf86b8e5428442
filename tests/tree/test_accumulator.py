"""The sum of one piece at one member: a step with non-finite values leaves no trace and loses no residual."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradwire.level import Values
from gradwire.tree.accumulator import Accumulator, DenseAccumulator, SharedMaskAccumulator

NUMEL = 2048


def accumulators(values: Values, gradient: Tensor, residual: Tensor) -> list[Accumulator]:
    mask = torch.arange(0, NUMEL, 2, dtype=torch.int32)
    return [
        DenseAccumulator(values, gradient.clone(), residual, None),
        SharedMaskAccumulator(values, gradient.clone(), residual.clone(), mask, None),
    ]


def spoilt_gradient() -> Tensor:
    gradient = torch.randn(NUMEL, generator=torch.Generator().manual_seed(1))
    gradient[10] = torch.nan
    return gradient


@pytest.mark.parametrize("values", ["fp32", "fp16", "int8", "int4", "int2"])
def test_a_lost_cell_of_a_non_finite_step_leaves_the_residual_finite(values: Values) -> None:
    for accumulator in accumulators(values, spoilt_gradient(), torch.zeros(NUMEL)):
        accumulator.begin()
        body = torch.zeros(accumulator.body.nbytes, dtype=torch.uint8)
        accumulator.pack(body)
        accumulator.reclaim(body, list(range(accumulator.body.cells)))
        assert accumulator._residual.isfinite().all()  # type: ignore[attr-defined]


@pytest.mark.parametrize("values", ["fp32", "fp16", "int8", "int4", "int2"])
@pytest.mark.parametrize("at_the_root", [False, True])
def test_a_residual_survives_a_non_finite_step(values: Values, at_the_root: bool) -> None:
    for accumulator in accumulators(
        values, torch.zeros(NUMEL).index_fill_(0, torch.tensor([10]), torch.nan), torch.ones(NUMEL)
    ):
        accumulator.begin()
        body = torch.zeros(accumulator.body.nbytes, dtype=torch.uint8)
        accumulator.write_mean(body, 2.0) if at_the_root else accumulator.pack(body)
        carried = torch.empty(accumulator.body.count)
        accumulator._codec.decode(body, carried, 1.0, add=False)  # type: ignore[attr-defined]
        assert not carried.isfinite().all()
        sent = torch.where(carried.isfinite(), carried, 0.0).sum() * (2.0 if at_the_root else 1.0)
        waits = accumulator._residual.sum()  # type: ignore[attr-defined]
        assert float(sent + waits) == pytest.approx(NUMEL, abs=1.0)
