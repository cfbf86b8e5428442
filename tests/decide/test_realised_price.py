"""Realised price: what noted losses show of a level's cost, how sure that is, and what must not be taken for it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from gradwire.decide.realised_price import MOST, SKIPPED, RealisedPrice
from gradwire.level import Level
from gradwire.types import Slowdown

OFF, SPARSE, LOWRANK = map(Level.parse, ("off", "topk:0.01+int8", "lowrank:4"))

Lossy = Callable[[int], bool]


def blocks(step: int) -> bool:
    """A network that changes every 200 steps."""
    return (step // 200) % 2 == 1


def job(  # noqa: PLR0913 - what may happen to a job
    price: float, predicted: float, lossy: Lossy, *, steps: int = 1200, noise: float = 0.02, seed: int = 1,
    every: int = 1, before: int = 0, drop: int = 10**9, rate: Callable[[int], float] | None = None,
) -> RealisedPrice:  # fmt: skip
    """A loss that falls by a power of the progress, noted at every `every`-th step; at step `drop` it falls by a
    quarter, as with a learning rate that drops."""
    rng, realised, progress = random.Random(seed), RealisedPrice(), float(before)
    for step in range(steps):
        held = lossy(step)
        progress += 1 / price if held else 1.0
        loss = (1 + 2 * progress**-0.3) * (0.75 if step >= drop else 1.0) + rng.gauss(0, noise)
        level, known = (SPARSE, predicted) if held else (OFF, 1.0)
        realised.take(0.0 if step % every else loss, level, known, rate(step) if rate else None)
    return realised


def found(realised: RealisedPrice, predicted: float) -> Slowdown:
    return realised.slowdown(SPARSE, predicted)


@pytest.mark.parametrize(("price", "predicted"), [(1.4, 2.0), (2.0, 2.0), (3.0, 2.0), (2.0, 1.3)])
def test_a_clear_slowdown_is_found_between_its_bounds_where_the_level_changed_often(
    price: float, predicted: float
) -> None:
    every = [found(job(price, predicted, blocks, seed=seed), predicted) for seed in range(5)]
    assert all(one.realised is not None for one in every)
    inside = sum((one.low or 0) <= price <= (one.high or 0) for one in every)
    assert inside >= 3, "nine in ten are expected; three of five is what chance hardly misses"
    used = sum(one.used for one in every) / len(every)
    assert used == pytest.approx(price, rel=0.15)


def test_a_level_that_costs_nothing_is_used_at_a_lower_price_than_predicted() -> None:
    one = found(job(1.0, 2.0, blocks), 2.0)
    assert one.high is not None
    assert one.high < 1.5
    assert one.used < 1.4


def test_one_level_from_the_first_step_on_shows_nothing_and_the_prediction_stays() -> None:
    one = found(job(3.0, 1.5, lambda step: True), 1.5)
    assert one.realised is None
    assert one.used == pytest.approx(1.5, abs=0.02)


@pytest.mark.parametrize("seed", range(4))
def test_a_few_per_cent_are_not_known_from_a_thousand_losses_and_the_prediction_stays(seed: int) -> None:
    one = found(job(1.15, 1.05, lambda step: step >= 300, steps=1000, noise=0.1, seed=seed), 1.05)
    assert one.realised is None
    assert one.used == pytest.approx(1.05, abs=0.02)


@pytest.mark.parametrize("drop", [300, 600])
@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_a_drop_of_the_learning_rate_that_is_not_known_is_not_taken_for_a_gain(drop: int, noise: float) -> None:
    one = found(job(1.5, 2.0, lambda step: step >= 300, steps=1000, noise=noise, drop=drop), 2.0)
    assert one.realised is None
    assert one.used == pytest.approx(2.0, abs=0.1)


def test_losses_before_and_after_a_change_of_the_learning_rate_are_not_compared() -> None:
    """At the step of the change everything changes: level, learning rate and the course of the loss."""
    one = found(
        job(1.0, 2.0, lambda step: step >= 300, steps=900, drop=300, rate=lambda step: 0.1 if step < 300 else 0.01), 2.0
    )
    assert one.realised is None
    assert one.used == pytest.approx(2.0, abs=0.02)


def test_a_rate_that_changes_all_the_time_leaves_the_prediction() -> None:
    one = found(job(3.0, 1.5, blocks, rate=lambda step: 0.1 * 0.997**step), 1.5)
    assert one.used == 1.5


def test_what_was_known_before_a_change_of_the_learning_rate_is_kept() -> None:
    kept = found(job(3.0, 2.0, blocks, rate=lambda step: 0.1 if step < 1190 else 0.01), 2.0)
    assert kept.used > 2.4


def test_a_resumed_job_is_not_taken_for_one_that_begins() -> None:
    """Its loss hardly falls any more; a change of level at step 300 bends it as little as the noise."""
    one = found(job(1.3, 1.3, lambda step: step >= 300, steps=1000, before=20_000), 1.3)
    assert one.used == pytest.approx(1.3, abs=0.2)


def test_losses_that_are_noted_seldom_or_are_not_finite_count_with_the_steps_between_them() -> None:
    one = found(job(3.0, 2.0, blocks, steps=4800, every=10), 2.0)
    assert one.notes == 480
    broken = RealisedPrice()
    for loss in (math.nan, math.inf, 0.0):
        broken.take(loss, SPARSE, 2.0)
    assert found(broken, 2.0) == Slowdown(SPARSE, 2.0, 2.0, notes=0)


def test_levels_of_another_kind_keep_their_prediction() -> None:
    realised = job(3.0, 2.0, blocks)
    assert realised.corrected(LOWRANK, 1.5) == 1.5
    assert realised.corrected(SPARSE, 1.5) > 1.6
    assert realised.corrected(OFF, 1.0) == 1.0


def test_memory_is_bounded_however_many_losses_are_noted() -> None:
    rng, realised = random.Random(1), RealisedPrice()
    for step in range(4 * MOST + SKIPPED):
        realised.take(1 + 2 * (step + 1) ** -0.3 + rng.gauss(0, 0.1), SPARSE, 1.1)
    assert len(realised._window.entries) <= MOST
    assert realised._window.stride >= 4
    assert sum(one.steps for one in realised._window.entries) <= 4 * MOST
