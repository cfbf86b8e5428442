"""scenarios.py compares by time to a loss, and only with combinations that need about as many steps."""

from __future__ import annotations

from typing import Any

import pytest

import scenarios

CELL: dict[str, Any] = {
    "auto": {"step": 100, "seconds": 10.0, "typical": 0.1, "used": [[1, "group int8"], [9, "tcp int4"]], "reasons": []},
    "auto, flat": {"step": 100, "seconds": 11.0, "typical": 0.1, "used": [[1, "group int8"]], "reasons": []},
    "auto, trade": {"step": 150, "seconds": 5.0, "typical": 0.03, "used": [[1, "tcp topk:0.01"]], "reasons": []},
    "group off": {"step": 100, "seconds": 90.0, "typical": 0.9},
    "tcp int4": {"step": 104, "seconds": 9.8, "typical": 0.09},
    "tcp topk:0.01+int8": {"step": 170, "seconds": 4.0, "typical": 0.02},
    "ltp topk:0.01+int8": {"step": None, "seconds": None, "typical": 0.01},
}


@pytest.mark.parametrize("name", scenarios.SCENARIOS)
def test_every_scenario_is_a_network_at_a_tenth_of_its_rates(name: str) -> None:
    whole, run = scenarios.SCENARIOS[name][1](), scenarios.Run(name, "mlp", 10)
    assert len(run.network.ranks) > 2
    for slow, link in zip(run.network.links, whole.links, strict=True):
        assert slow.spec.rate == pytest.approx(link.spec.rate / 10)


def test_a_combination_that_needs_many_more_steps_is_compared_only_where_they_are_allowed() -> None:
    assert scenarios.ratio_of(CELL, "auto", scenarios.SAME_STEPS) == pytest.approx(0.98)
    assert scenarios.ratio_of(CELL, "auto, trade", float("inf")) == pytest.approx(0.8)


def test_a_loss_is_reached_by_the_mean_of_some_steps() -> None:
    losses = [1.0] * 30 + [0.0] + [1.0] * 30 + [0.5] * 40
    ends = [float(step) for step in range(1, len(losses) + 1)]
    found = scenarios.reached(losses, ends, 0.51)
    assert found is not None
    assert found[0] == pytest.approx(81, abs=1)
    assert scenarios.reached(losses, ends, 0.1) is None


def test_what_is_below_the_target_is_bold() -> None:
    text = scenarios.page({"lan/mlp/300": CELL})
    assert "tcp int4, 104 steps (of 4 tried) | 0.98x | tcp int4, 100 steps |" in text
    assert "| **0.80x** |" in text
