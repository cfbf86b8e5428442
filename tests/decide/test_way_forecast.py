"""Flat exchanges and trees are compared by time to accuracy, each at the best level that it can use."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gradwire.decide.way_forecast import corrected, flat_forecasts, flat_ways, relative_gain, tree_ways
from gradwire.level import Level
from gradwire.types import LevelOption, RouteForecast, StepFacts

INT4, LOWRANK, TOPK = Level.parse("int4"), Level.parse("lowrank:4"), Level.parse("topk:0.01+int8")
SHARED = Level.parse("sharedk:0.01+int8")
FACTS = StepFacts(seconds=0.7, exposed=0.6, busy=0.6)


def option(level: Level, seconds: float, price: float = 1.0, now: bool = True) -> LevelOption:
    return LevelOption(level, seconds, seconds - 0.1, price, now, price)


def test_each_way_is_taken_at_its_best_level() -> None:
    options = [option(INT4, 0.7), option(TOPK, 0.25, 1.03)]
    routes = RouteForecast(0.6, 0.2, "", {INT4: 0.2, SHARED: 0.3})
    flat, trees = flat_ways(options), tree_ways(options, routes, FACTS, 0.0)
    assert trees is not None
    assert (flat.now.level, trees.now.level) == (TOPK, INT4)
    assert trees.now.seconds == pytest.approx(0.1 + 0.2)
    assert relative_gain(flat, trees) == pytest.approx(1 - 0.3 / (0.25 * 1.03)), "trees lose, though int4 gains 400 ms"


def test_low_rank_is_not_what_trees_would_use() -> None:
    options = [option(LOWRANK, 0.2, 1.2), option(INT4, 0.7)]
    trees = tree_ways(options, RouteForecast(0.6, 0.2, "", {INT4: 0.25}), FACTS, 0.0)
    assert trees is not None
    assert trees.later.level == INT4
    assert trees.later.price == 1.0
    assert relative_gain(flat_ways(options), trees) < 0
    assert tree_ways(options[:1], RouteForecast(0.6, 0.2, "", {INT4: 0.25}), FACTS, 0.0) is None


def test_levels_of_the_time_after_the_warm_up_must_speak_for_trees_too() -> None:
    dense = [option(INT4, 0.7)]
    routes = RouteForecast(0.6, 0.2, "", {INT4: 0.2, SHARED: 0.19})
    trees = tree_ways(dense, routes, FACTS, 0.0)
    assert trees is not None
    assert relative_gain(flat_ways(dense), trees) == pytest.approx(1 - 0.3 / 0.7)
    both = [*dense, option(TOPK, 0.28, now=False)]
    trees = tree_ways(both, routes, FACTS, 0.0)
    assert trees is not None
    assert trees.now.level == INT4, "the trial cannot use what the warm-up forbids"
    assert relative_gain(flat_ways(both), trees) < 0


def test_another_flat_transport_saves_no_more_than_what_training_waits() -> None:
    options = [option(INT4, 0.7), option(TOPK, 0.15)]
    assert [one.seconds for one in flat_forecasts(options, saved=0.08)] == pytest.approx([0.62, 0.1])


def test_a_level_whose_price_is_not_known_yet_is_no_way() -> None:
    options = [option(INT4, 0.7), replace(option(TOPK, 0.15), known=False)]
    assert [one.to_accuracy for one in flat_forecasts(options)] == [pytest.approx(0.7), math.inf]


@pytest.mark.parametrize(
    ("took", "expected"), [(0.6, 0.2), (0.3, 0.1), (0.9, 0.5), (-0.1, 0.0)], ids=["right", "less", "more", "nothing"]
)
def test_a_forecast_is_corrected_by_what_the_present_exchange_takes(took: float, expected: float) -> None:
    assert corrected(0.2, 0.6, took) == pytest.approx(expected)
    assert corrected(0.2, 0.0, took) == 0.2, "nothing is known of an exchange that was not predicted"


def test_what_compute_hides_of_the_exchange_is_no_gain() -> None:
    facts = StepFacts(seconds=0.7, exposed=0.1, busy=0.6)
    options = [LevelOption(INT4, 0.7, 0.1)]
    trees = tree_ways(options, RouteForecast(0.6, 0.2, "", {INT4: 0.3}), facts, 0.0)
    assert trees is not None
    assert trees.now.seconds == pytest.approx(0.6 + 0.05)


@pytest.mark.parametrize(("summed", "level"), [(1.04, SHARED), (4.5, INT4), (None, INT4)])
def test_a_shared_mask_counts_with_its_own_price_and_only_where_that_is_permitted(
    summed: float | None, level: Level
) -> None:
    options = [option(INT4, 0.7), replace(option(TOPK, 0.5), summed=summed)]
    trees = tree_ways(options, RouteForecast(0.6, 0.2, "", {INT4: 0.55, SHARED: 0.1}), FACTS, 0.0)
    assert trees is not None
    assert trees.later.level == level
    assert trees.later.price == (summed if level == SHARED else 1.0)
    assert (relative_gain(flat_ways(options), trees) > 0) == (level == SHARED)


def test_the_processor_time_of_hops_is_part_of_a_step_along_trees() -> None:
    options = [option(INT4, 0.7)]
    routes = RouteForecast(0.6, 0.2, "", {INT4: 0.2}, {INT4: 0.15})
    trees = tree_ways(options, routes, FACTS, 0.0)
    assert trees is not None
    assert trees.now.seconds == pytest.approx(0.1 + 0.2 + 0.15)
