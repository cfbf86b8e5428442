"""The price of low rank: by rank before it has run, then by what waits in the residual."""

from __future__ import annotations

import math

import pytest

from gradwire.decide.job_prices import JobPrices
from gradwire.decide.lowrank_price import BY_RANK, FILLING, FORGOTTEN, SETTLED, LowRankPrices, price_by_rank
from gradwire.level import Level
from gradwire.types import StepFacts

MILD, DENSE = Level.parse("lowrank:32+int4"), Level.parse("int4")
ENOUGH = FILLING + SETTLED


def ran(
    residual: float, steps: int = ENOUGH, level: Level = MILD, prices: LowRankPrices | None = None
) -> LowRankPrices:
    prices = prices or LowRankPrices()
    for _ in range(steps):
        prices.take(level, residual)
    return prices


def test_before_it_has_run_the_rank_alone_counts() -> None:
    prices = LowRankPrices()
    for adaptive, kind in ((True, 0), (False, 1)):
        assert prices.of(32, adaptive) == BY_RANK[32][kind]
        assert prices.of(4, adaptive) == BY_RANK[4][kind]
        assert BY_RANK[8][kind] > prices.of(12, adaptive) > BY_RANK[16][kind]


def test_what_waits_decides_once_it_has_run() -> None:
    nothing, some, much = (ran(residual).of(32, adaptive=True) for residual in (0.05, 1.5, 8.0))
    assert 1.0 <= nothing < 1.01
    assert 1.05 < some < 1.2
    assert much > 1.3


def test_the_price_of_one_rank_tells_those_of_others() -> None:
    prices = ran(2.0)
    found = [prices.of(rank, True) for rank in (8, 16, 32, 64, 128)]
    assert found == sorted(found, reverse=True)
    assert found[2] > 1.05 > found[4], "four times the rank leaves too little waiting to count"
    assert ran(1.0).of(32, True) > 1.05 > ran(1.0).of(64, True)
    assert ran(0.02).of(16, True) < 1.05 < price_by_rank(16, True), "half the rank will do"
    assert prices.of(4, True) == price_by_rank(4, True), "more rank does not make less rank dearer than assumed"
    assert ran(20.0).of(16, True) == ran(20.0).of(32, True), "except where more rank is dearer than that"


def test_the_nearest_measured_rank_counts() -> None:
    prices = ran(0.5, level=Level.parse("lowrank:64+int4"), prices=ran(2.0))
    both, low = prices.of(128, True), ran(2.0).of(128, True)
    assert both < low
    assert prices.of(32, True) == ran(2.0).of(32, True)


def test_a_residual_that_still_fills_does_not_count() -> None:
    assert ran(0.01, ENOUGH - 1).of(32, True) == price_by_rank(32, True)
    prices = LowRankPrices()
    for _ in range(4):
        ran(0.01, ENOUGH - 1, prices=prices)
        prices.take(DENSE, 0.02)
    counted = 4 * (SETTLED - 1)
    assert counted > SETTLED
    assert prices.of(32, True) < 1.01, "steps after the filling count, also of several runs"
    for _ in range(100):
        prices.take(MILD, 8.0)
        prices.take(DENSE, 0.02)
    assert prices.of(32, True) < 1.01, "single steps never fill it"


def test_levels_of_other_kinds_and_what_was_not_measured_change_nothing() -> None:
    prices = ran(5.0, level=Level.parse("topk:0.01+int8"), prices=ran(0.0))
    ran(math.inf, prices=prices)
    ran(math.nan, prices=prices)
    assert prices.of(32, True) == price_by_rank(32, True)


def test_an_outlier_hardly_counts() -> None:
    prices = ran(0.2, 2 * ENOUGH)
    before = prices.of(32, True)
    prices.take(MILD, 1e12)
    assert prices.of(32, True) < before + 0.01


def test_a_residual_beyond_all_bounds_has_a_price() -> None:
    assert 10 < ran(1e300).of(32, True) < math.inf


def test_it_follows_a_job_that_changes() -> None:
    assert ran(3.0, 200, prices=ran(0.1)).of(32, True) > 1.15


def test_what_was_measured_long_ago_is_forgotten() -> None:
    prices = ran(8.0)
    ran(0.02, FORGOTTEN - 1, DENSE, prices)
    assert prices.of(32, True) > 1.3
    prices.take(DENSE, 0.02)
    assert prices.of(32, True) == price_by_rank(32, True)


@pytest.mark.parametrize("adaptive", [True, False])
def test_a_job_s_prices_follow_the_residual_of_its_steps(adaptive: bool) -> None:
    prices = JobPrices((0.1,))
    assert prices.of(MILD) == price_by_rank(32, True), "of the more cautious kind, until the optimizer is known"
    for _ in range(ENOUGH):
        prices.take(MILD, StepFacts(1.0, residual=2.0, adaptive=adaptive))
    assert prices.of(MILD) == pytest.approx(ran(2.0).of(32, adaptive))
