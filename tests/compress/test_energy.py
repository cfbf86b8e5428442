"""The energy of a residual relative to the gradient's, from some thousand elements of both."""

from __future__ import annotations

import pytest
import torch

from gradwire.compress.energy import RUN, SAMPLE, energies, sampled_runs, sampled_span


@pytest.mark.parametrize("numel", [0, 7, SAMPLE, SAMPLE + 1, 10 * SAMPLE, 1_000_003])
def test_as_many_elements_of_any_size_as_there_are_or_are_wanted(numel: int) -> None:
    flat = torch.arange(numel, dtype=torch.float32)
    for step in (0, 1, 999):
        found = sampled_runs(step, flat)
        assert found.numel() == min(numel, SAMPLE)
        assert len(found.unique()) == found.numel(), "none twice"


def test_every_part_of_a_bucket_counts_with_its_size() -> None:
    """A tenth of the bucket holds a residual: its energy is that of a tenth, wherever it is and in every step."""
    for first in (0, 450_000, 900_000):
        residual = torch.zeros(1_000_000)
        residual[first : first + 100_000] = 3.0
        for step in range(5):
            waits, fresh = energies(step, residual, torch.ones(1_000_000))
            assert waits / fresh == pytest.approx(0.9, rel=0.05)


def test_steps_look_at_other_places() -> None:
    flat = torch.arange(1_000_000, dtype=torch.float32)
    assert not set(sampled_runs(1, flat).tolist()) & set(sampled_runs(2, flat).tolist())
    assert float(sampled_runs(3, flat)[1] - sampled_runs(3, flat)[0]) == 1.0, "runs touch few cache lines"
    assert RUN > 1


def test_the_energy_of_what_a_rank_encodes_scales_the_gradient_s() -> None:
    assert energies(0, torch.ones(8), torch.ones(8), 4.0) == (8.0, 32.0)


def test_a_span_lies_within_the_bucket() -> None:
    for step in range(50):
        span = sampled_span(step, 3 * SAMPLE)
        assert 0 <= span.start < span.stop <= 3 * SAMPLE
