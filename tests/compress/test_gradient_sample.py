"""A sample has the same elements at every step, in proportion to every bucket's size."""

from __future__ import annotations

import numpy as np
import torch

from gradwire.compress.gradient_sample import SIZE, GradientSampler


def test_the_same_elements_at_every_step() -> None:
    sampler = GradientSampler(100_000)
    gradient = torch.arange(100_000.0)
    sampler.add(gradient)
    first = sampler.take_step()
    sampler.add(gradient)
    second = sampler.take_step()
    assert first is not None
    np.testing.assert_array_equal(first, second)
    assert SIZE / 2 <= len(first) <= 2 * SIZE
    assert first.min() < 1000, "from the whole gradient"
    assert first.max() > 99_000


def test_buckets_count_with_their_size() -> None:
    sampler = GradientSampler(1_000_000)
    sampler.add(torch.zeros(900_000))
    sampler.add(torch.ones(100_000))
    sample = sampler.take_step()
    assert sample is not None
    assert 0.08 <= sample.mean() <= 0.12


def test_small_models_half_precision_and_no_bucket() -> None:
    sampler = GradientSampler(5)
    sampler.add(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=torch.float16))
    assert sampler.take_step().tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]  # type: ignore[union-attr]
    assert sampler.take_step() is None
