"""The figure of times to a loss: what it draws of the progress benchmark's results."""

from __future__ import annotations

from typing import Any

import pytest

from figures import CONTESTANTS, speedup, time_to_loss


def cell(network: str, **seconds: list[float | None]) -> dict[str, Any]:
    first = {name: [1.0] * len(own) for name, own in seconds.items()}
    return {"task": "mlp", "network": network, "targets": [{"seconds": first}, {"seconds": seconds}]}


def test_a_speed_up_is_the_geometric_mean_over_tasks_and_seeds_at_the_last_loss() -> None:
    cells = [cell("lte", off=[8.0, 18.0], auto=[2.0, 2.0]), cell("lte", off=[6.0], auto=[1.0])]
    assert speedup(cells, "auto") == pytest.approx((4 * 9 * 6) ** (1 / 3))


def test_a_contestant_that_misses_the_loss_once_has_no_speed_up() -> None:
    assert speedup([cell("lte", off=[8.0, 8.0], auto=[2.0, None])], "auto") is None


def test_the_figure_has_the_networks_that_were_run_and_says_what_was() -> None:
    others = {name: [4.0] for name in CONTESTANTS}
    found = {"cells": [cell("lte", off=[8.0], **others)], "setup": {"hosts": 4, "steps": 300}, "seeds": [1]}
    svg = time_to_loss(found)
    assert svg.count(">2x</text>") == len(CONTESTANTS) + 1  # one at each bar, and the mark of the axis
    assert "mobile" in svg
    assert "satellite" not in svg
    assert "mlp, 300 steps" in svg
