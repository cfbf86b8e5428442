"""The sum of one piece at one member: a step with non-finite values leaves no trace and loses no residual."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradwire.compress.residual import ResidualSpan
from gradwire.level import Values
from gradwire.tree.accumulator import Accumulator, DenseAccumulator, SharedMaskAccumulator

NUMEL = 2048


def accumulators(values: Values, gradient: Tensor, residual: Tensor) -> list[Accumulator]:
    mask = torch.arange(0, NUMEL, 2, dtype=torch.int32)
    return [
        DenseAccumulator(values, gradient.clone(), ResidualSpan(residual, 0), None),
        SharedMaskAccumulator(values, gradient.clone(), ResidualSpan(residual.clone(), 0), mask, None),
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
        assert accumulator._residual.stored.isfinite().all()  # type: ignore[attr-defined]


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
        waits = accumulator._residual.stored.sum()  # type: ignore[attr-defined]
        assert float(sent + waits) == pytest.approx(NUMEL, abs=1.0)


@pytest.mark.parametrize("values", ["fp32", "fp16", "int8", "int4", "int2"])
@pytest.mark.parametrize("at_the_root", [False, True])
@pytest.mark.parametrize("returned", [False, True])
def test_a_residual_in_bfloat16_keeps_what_is_not_sent_to_its_rounding(
    values: Values, at_the_root: bool, returned: bool
) -> None:
    """Each element to one distance of two bfloat16 numbers of what is kept, and without bias over all."""
    generator = torch.Generator().manual_seed(2)
    gradient, before = torch.randn(NUMEL, generator=generator), torch.randn(NUMEL, generator=generator).bfloat16()
    mask = torch.arange(0, NUMEL, 2, dtype=torch.int32)
    dense = DenseAccumulator(values, gradient.clone(), ResidualSpan(before.clone(), 5), None)
    masked = SharedMaskAccumulator(values, gradient.clone(), ResidualSpan(before.clone(), 5), mask, None)
    counts = 3.0 if at_the_root else 1.0
    for accumulator, places in ((dense, torch.arange(NUMEL)), (masked, mask.long())):
        accumulator.begin()
        body, sent = torch.zeros(accumulator.body.nbytes, dtype=torch.uint8), torch.zeros(len(places))
        if at_the_root:
            accumulator.write_mean(body, counts)
        else:
            accumulator.pack(body)
        accumulator._codec.decode(body, sent, counts, add=False)
        if returned and not at_the_root:
            accumulator.reclaim(body, list(range(accumulator.body.cells)))
            sent.zero_()
        kept = accumulator._residual.stored.double()
        lost = gradient.double() + before.double() - kept
        lost[places] -= sent.double()
        assert bool((lost.abs() <= 2.0**-6 * kept.abs() + 1e-6).all())
        assert abs(float(lost.mean())) < 5 * 2.0**-8 * float(kept.square().mean()) ** 0.5 / NUMEL**0.5 + 1e-7
