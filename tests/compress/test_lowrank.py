"""Low rank with rounded factors: small directions of a gradient survive beside large ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradwire.compress.base import ChunkSpan
from gradwire.compress.build import build_codec
from gradwire.compress.lowrank import LowRank
from gradwire.level import Level
from gradwire.types import ParameterSlice

SIDE, RANK = 128, 16


def rounded(values: Tensor) -> Tensor:
    """As the exchange sends factors: in 4 bits, with one scale per block."""
    codec, span = build_codec(Level(values="int4")), ChunkSpan(0, 0, 0, values.numel())
    frame, read = torch.empty(codec.size_of(values.numel()), dtype=torch.uint8), torch.empty_like(values)
    codec.encode(values.clone(), None, frame, span, None)
    codec.decode(frame, read, span)
    return read


def orthogonal(seed: int) -> Tensor:
    drawn = torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(seed))
    return torch.linalg.qr(drawn)[0]


@pytest.mark.parametrize("steps", [4, 12])
def test_directions_of_a_tenth_of_the_largest_are_found_with_factors_in_four_bits(steps: int) -> None:
    """Each is 0.8 times the one before, so the twelfth is 0.09 times the first. P = M Q with columns of Q as they were
    summed has squares of these sizes, and mixtures of larger ones: rounding would leave noise of the small ones."""
    left, right = orthogonal(1), orthogonal(2)
    gradient = ((left * 0.8 ** torch.arange(SIDE)) @ right.T).flatten()
    factors = LowRank(Level.parse(f"lowrank:{RANK}+int4"))
    layout = factors.layout((ParameterSlice("w", 0, (SIDE, SIDE), SIDE * SIDE),))
    for _ in range(steps):
        basis = factors.bases(layout, rounded(factors.left(gradient, layout)))
        q = rounded(factors.right(gradient, layout, basis))
        factors.restore(layout, basis, q, torch.empty_like(gradient))
    found = (basis[0].T @ left[:, :12]).square().sum(0)
    assert found.min() > 0.9, found
