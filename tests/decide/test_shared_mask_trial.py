"""What a shared mask keeps is measured on rank 0's sample, with its own samples of other steps as other ranks."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from gradwire.decide.price import PriceList
from gradwire.decide.shared_mask_trial import PLAYED, SETTLED, STEADY, SharedMaskEnergy, SharedMaskTrial
from gradwire.level import Level

NUMEL = 2048
SHARED, TOPK = Level.parse("sharedk:0.1+int8"), Level.parse("topk:0.1+int8")


def samples(alike: float, steps: int, seed: int = 1) -> list[NDArray[np.float32]]:
    """Gradients of which this share of the energy is the same at every step; elements differ a hundredfold in size."""
    common, rng = np.random.default_rng(0), np.random.default_rng(seed)
    sizes = np.exp(common.uniform(-2.3, 2.3, NUMEL))
    signal = common.standard_normal(NUMEL) * sizes
    noise = (rng.standard_normal(NUMEL) * sizes for _ in range(steps))
    return [(alike**0.5 * signal + (1 - alike) ** 0.5 * one).astype(np.float32) for one in noise]


def prices(alike: float, steps: int = SETTLED + PLAYED) -> PriceList:
    found = PriceList((0.1, 0.01))
    for sample in samples(alike, steps):
        found.of(SHARED)
        found.take(sample, True)
    return found


def test_the_trial_keeps_what_a_real_group_of_ranks_keeps() -> None:
    """Ranks with gradients of their own, as many as are played, against one rank's samples."""
    ranks = [samples(0.3, 60, seed) for seed in range(1, PLAYED + 1)]
    residual, kept = np.zeros((PLAYED, NUMEL)), []
    for step, rows in enumerate(zip(*ranks, strict=True)):
        residual += np.stack(rows)
        order = np.argsort(-np.abs(residual[step % PLAYED]))[: round(0.1 * NUMEL)]
        kept.append(float((residual[0][order] ** 2).sum() / (residual[0] ** 2).sum()))
        residual[:, order] = 0
    trial, energy = SharedMaskTrial(0.1), SharedMaskEnergy((0.1,))
    for sample in ranks[0]:
        energy.kept(0.1)
        energy.take(sample)
    for step in range(60):
        trial.take(np.stack([own[step] for own in ranks]))
    assert trial.kept == pytest.approx(np.mean(kept[30:]), abs=0.05)
    assert energy.kept(0.1) == pytest.approx(trial.kept, abs=0.08)


def test_a_shared_mask_costs_more_than_each_ranks_own_choice_and_less_where_ranks_agree() -> None:
    differing, alike = prices(0.0), prices(1.0)
    assert differing.of(SHARED) > 1.2 * differing.of(TOPK)
    assert alike.of(SHARED) < differing.of(SHARED)
    assert alike.of(SHARED) == pytest.approx(alike.of(TOPK), rel=0.1)


def test_until_it_is_measured_a_mask_keeps_no_more_than_one_without_a_choice() -> None:
    found = prices(0.5, SETTLED)
    assert not found.settled
    assert found.of(SHARED) == pytest.approx(1.002 * (1 - np.log(0.1)))


def test_shares_between_two_trials_are_between_their_energies() -> None:
    energy = SharedMaskEnergy((0.1, 0.01))
    for sample in samples(0.3, 40):
        energy.kept(0.1)
        energy.take(sample)
    assert energy.kept(0.01) < energy.kept(0.03) < energy.kept(0.1) < energy.kept(0.5) < 1.0


def test_trials_run_only_as_long_as_someone_asks() -> None:
    energy = SharedMaskEnergy((0.1,))
    for index, sample in enumerate(samples(0.3, 60)):
        if 20 <= index < 50:
            energy.kept(0.1)
        energy.take(sample)
        assert bool(energy._trials) == (20 <= index < 50)
    assert energy.settled


def test_trials_take_turns_when_they_are_steady() -> None:
    energy = SharedMaskEnergy((0.1, 0.01))
    for sample in samples(0.3, STEADY + PLAYED - 1 + 10):
        energy.kept(0.1)
        energy.take(sample)
    assert [trial.steps for trial in energy._trials.values()] == [STEADY + 5, STEADY + 5]
