"""Which levels `auto` may use, and what it says of them before their prices are known."""

from __future__ import annotations

import numpy as np

from gradwire.decide.accuracy_guard import AccuracyGuard
from gradwire.decide.cost_model import StepPrediction
from gradwire.decide.job_prices import JobPrices
from gradwire.decide.ladder import LADDER
from gradwire.decide.level_rules import LevelRules
from gradwire.decide.price import SETTLED
from gradwire.decide.warmup import WARM_STEPS
from gradwire.level import Level
from gradwire.types import LevelOption, StepFacts

INT4, INT2, TOPK = Level.parse("int4"), Level.parse("int2"), Level.parse("topk:0.1+int8")
LOWRANK = Level.parse("lowrank:32+int4")


def rules(steps: int = 0, lossiest: Level | None = None, extra_steps: float = 0.05) -> LevelRules:
    """For a job whose gradient is in a tenth of its elements, after so many steps."""
    prices = JobPrices(tuple(rung.level.ratio for rung in LADDER if rung.level.sparse))
    sample = np.zeros(1000, dtype=np.float32)
    sample[:50] = 1.0
    prices.take(INT4, StepFacts(0.1, 0.1, 0.1, 1000, 1, sample=sample, adaptive=True))
    for _ in range(steps):
        prices.take(INT4, StepFacts(0.1, 0.1, 0.1, 1000, 1, sample=sample, adaptive=True))
    return LevelRules(prices, AccuracyGuard(), lossiest, extra_steps)


def options(known: LevelRules, step: int) -> dict[Level, LevelOption]:
    predictions = [StepPrediction(rung, 0.2, 0.1, known.prices.of(rung.level)) for rung in LADDER]
    return {one.level: one for one in known.options(predictions, step)}


def test_before_prices_are_known_sparse_levels_may_turn_out_to_be_permitted() -> None:
    found = options(rules(), 5)
    assert found[INT4].known
    assert found[INT4].now
    assert found[LOWRANK].known, "its price is that of its rank"
    assert found[LOWRANK].now, "this rank waits for no warm-up"
    assert INT2 not in found, "dearer than permitted, whatever the gradient is like"
    assert not found[TOPK].known
    assert found[TOPK].summed is None


def test_when_prices_are_known_all_options_are() -> None:
    found = options(rules(SETTLED), 60)
    assert all(one.known for one in found.values())
    assert TOPK in found
    assert found[INT4].summed is not None


def test_the_price_of_a_level_is_known_late_and_not_for_what_is_forbidden() -> None:
    assert rules().price(TOPK) is None
    assert rules().price(INT4) is not None
    assert rules().price(INT2) is None
    assert rules(extra_steps=1.0).price(INT2) is not None
    settled = rules(SETTLED)
    assert settled.price(TOPK) == settled.prices.of(TOPK)
    assert rules(SETTLED, lossiest=INT4).price(TOPK) is None
    assert not rules(SETTLED, lossiest=INT4).permits(TOPK, 1.0, WARM_STEPS + 1)
