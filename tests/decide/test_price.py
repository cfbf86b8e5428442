"""The price of lossiness: from the energy that a level keeps of this job's gradient, and the optimizer."""

from __future__ import annotations

import numpy as np
import pytest

from gradwire.decide.price import ADAPTIVE, PLAIN, SETTLED, STEADY, PriceList, SelectionTrial
from gradwire.decide.warmup import DENSE, DENSE_STEPS, WARM_STEPS, allows, least_share, warmed
from gradwire.level import Level

SHARES = (0.1, 0.03, 0.01)
TENTH = Level.parse("topk:0.1+int8")


def priced(samples: list[np.ndarray], adaptive: bool | None) -> PriceList:
    prices = PriceList(SHARES)
    for sample in samples:
        prices.take(sample.astype(np.float32), adaptive)
    return prices


def gradients(concentration: float, steps: int = 60) -> list[np.ndarray]:
    """Gaussian noise whose deviation falls from element to element: few elements hold most of the energy of a
    concentrated gradient."""
    rng = np.random.default_rng(1)
    deviation = np.exp(-concentration * np.linspace(0, 1, 2000))
    return [rng.normal(size=2000) * deviation for _ in range(steps)]


def test_a_concentrated_gradient_makes_sparse_levels_cheap() -> None:
    flat, steep = priced(gradients(0.0), True), priced(gradients(40.0), True)
    assert steep.of(TENTH) < 1.05
    assert flat.of(TENTH) > 1.3


def test_a_trial_counts_what_waits_in_its_residual() -> None:
    trial = SelectionTrial(0.05)
    kept = []
    for sample in gradients(0.0, 80):
        trial.take(sample.astype(np.float32))
        kept.append(trial.kept)
    assert kept[-1] < 0.9 * kept[0], "waiting energy accumulates until as much is sent as arrives"


def test_smaller_shares_cost_more_and_dense_formats_next_to_nothing() -> None:
    prices = priced(gradients(2.0), True)
    order = ["off", "fp16", "int8", "int4", "int2", "topk:0.1+int8", "topk:0.03+int8", "topk:0.01+int8"]
    found = [prices.of(Level.parse(text)) for text in order]
    assert found == sorted(found)
    assert found[0] == 1.0
    assert found[3] < 1.05
    assert prices.of(Level.parse("topk:0.05+int8")) == pytest.approx((found[5] + found[6]) / 2, rel=0.2)


def test_an_adaptive_optimizer_pays_more_and_is_assumed_until_known() -> None:
    samples = gradients(2.0)
    adam, sgd, unknown = (priced(samples, kind).of(TENTH) for kind in (True, False, None))
    assert adam - 1 == pytest.approx(ADAPTIVE / PLAIN * (sgd - 1), rel=0.02)
    assert unknown == adam


def test_prices_are_cautious_before_a_trial_has_settled() -> None:
    early, late = priced(gradients(40.0, SETTLED - 1), True), priced(gradients(40.0, SETTLED), True)
    assert early.of(TENTH) > 2
    assert late.of(TENTH) < 1.05


def test_a_sample_that_is_not_finite_changes_nothing() -> None:
    prices = priced(gradients(2.0), True)
    before = prices.of(TENTH)
    prices.take(np.array([np.nan, 1.0], dtype=np.float32), None)
    prices.take(None, None)
    assert prices.of(TENTH) == before


def test_a_new_size_of_the_sample_starts_a_trial_again() -> None:
    prices = priced(gradients(40.0), True)
    prices.take(np.ones(50, dtype=np.float32), True)
    assert prices.of(TENTH) > 1.5


def test_warm_up_is_dense_first_and_then_lets_the_share_fall() -> None:
    shares = [least_share(step) for step in range(WARM_STEPS + 1)]
    assert all(share > 1 for share in shares[:DENSE_STEPS])
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == 0.0
    small, low = Level.parse("topk:0.001+int8"), Level.parse("lowrank:4")
    assert warmed(0, small) == warmed(0, low) == DENSE
    assert 0.001 < warmed(60, small).ratio < 0.25
    assert warmed(WARM_STEPS, small) == small
    assert warmed(WARM_STEPS, low) == low
    assert allows(0, Level.parse("int4"))
    assert allows(0, Level())


def test_steady_trials_take_turns_and_prices_stay() -> None:
    rng = np.random.default_rng(3)
    prices = PriceList(SHARES)

    def steps(count: int) -> None:
        for _ in range(count):
            prices.take(rng.standard_t(3, size=2048).astype(np.float32), adaptive=True)

    steps(STEADY)
    before = {share: prices.of(Level.parse(f"topk:{share}")) for share in SHARES}
    taken = [trial.steps for trial in prices._trials.values()]
    steps(len(SHARES))
    assert [trial.steps for trial in prices._trials.values()] == [count + 1 for count in taken]
    steps(600)
    for share in SHARES:
        assert prices.of(Level.parse(f"topk:{share}")) == pytest.approx(before[share], rel=0.1)


def test_low_rank_costs_less_the_more_rank_it_has_and_a_rank_in_between_in_between() -> None:
    prices = PriceList(SHARES)
    found = [prices.of(Level.parse(f"lowrank:{rank}")) for rank in (1, 4, 6, 8, 16, 24, 32, 64)]
    assert found == sorted(found, reverse=True)
    assert found[0] == found[1] > found[2] > found[3]
    assert found[-2] == found[-1]
    assert prices.of(Level.parse("lowrank:32+int4")) <= 1.05


def test_mild_low_rank_waits_for_nothing() -> None:
    mild, harsh = Level.parse("lowrank:32+int4"), Level.parse("lowrank:4")
    assert allows(0, mild)
    assert not allows(DENSE_STEPS, harsh)
    assert not allows(WARM_STEPS - 1, harsh)
    assert allows(WARM_STEPS, harsh)
