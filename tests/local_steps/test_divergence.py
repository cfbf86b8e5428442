"""The divergence of replicas, from sums of sketches."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from gradwire.local_steps.divergence import SIZE, Divergence, DivergenceMeter, divergence


class Alone:
    """A process group of one rank."""

    def size(self) -> int:
        return 1


def sums_of(gradient: Tensor, parts: int = 1) -> Tensor:
    """What one rank would send."""
    meter = DivergenceMeter(Alone(), 1.0)  # type: ignore[arg-type]
    meter.begin(list(enumerate(gradient.chunk(parts))))
    return meter._sums


def of_ranks(*gradients: Tensor, parts: int = 1) -> Divergence:
    sums = torch.stack([sums_of(one, parts) for one in gradients]).sum(0)
    return divergence(sums, float(gradients[0].square().sum()), len(gradients))


def noise(seed: int, numel: int = 100_003) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def test_equal_opposite_and_unrelated_ways_have_alignment_one_minus_one_and_zero() -> None:
    assert of_ranks(noise(1), noise(1)).alignment == pytest.approx(1.0, abs=1e-4)
    assert of_ranks(noise(1), -noise(1)).alignment == pytest.approx(-1.0, abs=1e-4)
    assert of_ranks(noise(1), noise(2)).alignment == pytest.approx(0.0, abs=4 / math.sqrt(SIZE))


@pytest.mark.parametrize("parts", [1, 3])
def test_alignment_is_the_mean_cosine_of_all_pairs(parts: int) -> None:
    shared = noise(0)
    ranks = [shared + 0.5 * noise(seed) for seed in range(1, 6)]
    pairs = [torch.cosine_similarity(a, b, dim=0) for i, a in enumerate(ranks) for b in ranks[:i]]
    assert of_ranks(*ranks, parts=parts).alignment == pytest.approx(float(torch.stack(pairs).mean()), abs=0.05)


def test_a_few_large_elements_are_not_missed() -> None:
    """A sample of elements would not see them; a sketch has all elements."""
    one, other = 0.01 * noise(1), 0.01 * noise(2)
    one[77_777] = other[77_777] = 50.0
    exact = float(torch.cosine_similarity(one, other, dim=0))
    assert exact > 0.9
    assert of_ranks(one, other).alignment == pytest.approx(exact, abs=0.05)


def test_norms_are_exact() -> None:
    found = of_ranks(3 * noise(1), noise(2))
    assert found.own_norm == pytest.approx(float((3 * noise(1)).norm()), rel=1e-5)
    squares = float((3 * noise(1)).square().sum() + noise(2).square().sum())
    assert found.norm == pytest.approx(math.sqrt(squares / 2), rel=1e-5)


def test_a_model_smaller_than_the_sketch_is_compared_exactly() -> None:
    one, other = noise(1, 5), noise(2, 5)
    squares = float(one.square().sum() + other.square().sum())
    assert of_ranks(one, other).alignment == pytest.approx(2 * float(one @ other) / squares, abs=1e-5)


def test_nothing_is_compared_for_one_rank_or_where_no_rank_moved() -> None:
    assert of_ranks(noise(1)).alignment is None
    assert of_ranks(torch.zeros(9), torch.zeros(9)) == Divergence(0.0, 0.0, None)


def test_a_model_that_diverged_has_no_norm() -> None:
    found = of_ranks(torch.full((9,), math.inf), torch.zeros(9))
    assert math.isnan(found.own_norm)
    assert math.isnan(found.norm)
    assert found.alignment is None
