"""A fixed level: its warm-up, which every rank computes alike."""

from __future__ import annotations

import pytest

from gradwire.config import Config, resolve
from gradwire.decide.fixed import Fixed
from gradwire.decide.warmup import DENSE, WARM_STEPS
from gradwire.level import Level


def levels(level: str, warmup: int, steps: int) -> list[Level]:
    fixed = Fixed(Level.parse(level), 2, warmup)
    return [fixed.at(step).level for step in range(steps)]


def test_the_share_of_a_sparse_level_falls_to_the_configured_one() -> None:
    shares = [level.ratio for level in levels("topk:0.01+int8", 20, 22)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 0.25
    assert shares[20:] == [0.01, 0.01]
    assert {level.values for level in levels("topk:0.01+int8", 20, 22)} == {"int8"}


def test_a_low_rank_level_begins_dense() -> None:
    lowrank = Level.parse("lowrank:4")
    assert levels("lowrank:4", 3, 5) == [DENSE, DENSE, DENSE, lowrank, lowrank]
    assert "lowrank:4 from step 3 on" in Fixed(lowrank, 2, 3).at(0).reason


@pytest.mark.parametrize("level", ["off", "int8", "int4", "fp16", "topk:0.5", "lowrank:32+int4"])
def test_levels_that_send_enough_need_no_warm_up(level: str) -> None:
    assert set(levels(level, 10, 12)) == {Level.parse(level)}


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"level": "topk:0.01"}, WARM_STEPS),
        ({"level": "topk:0.01", "compress": {"warmup": 0}}, 0),
        ({"level": "topk:0.01", "compress": {"warmup": 7}}, 7),
        # A rank that joins has not counted the steps; rounds of local steps are far apart.
        ({"level": "sharedk:0.01", "plan": "star"}, 0),
        ({"level": "topk:0.1", "sync_every": 20}, 0),
    ],
)
def test_a_warm_up_is_the_default_where_all_ranks_count_the_same_steps(settings: dict[str, object], steps: int) -> None:
    assert resolve(settings, {}).warmup == steps
    assert Config().warmup == WARM_STEPS
