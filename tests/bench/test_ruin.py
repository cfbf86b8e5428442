"""Random jobs for the benchmark of ruined trainings: repeatable draws, and what a ruined run is blamed on."""

from __future__ import annotations

from typing import Any

import pytest

import ruin
from harness.progress.networks import is_steady, network_of
from harness.progress.tasks import task_of


def record(number: int, auto: bool, plain: bool) -> dict[str, Any]:
    """A finished job; whether either contestant was ruined."""
    ends = {"first": 2.3, "auto": 2.31 if auto else 1.0, "plain": 2.31 if plain else 1.0}
    levels = {"kinds": ["int4"], "order": [[0, 150]]}
    one = ruin.draw(number, data=False)
    found = {"auto_ruined": auto, "plain_ruined": plain, "speed": 2.0, "levels": levels, "guarded": 0}
    return {"settings": one, "made": ["abc", "2026-11-18"], **ends, **found}


def test_a_number_always_draws_the_same_job_and_another_number_another() -> None:
    assert ruin.draw(7, data=True) == ruin.draw(7, data=True)
    assert len({str(ruin.draw(number, data=True)) for number in range(60)}) == 60


@pytest.mark.parametrize("number", range(1, 21))
def test_every_drawn_job_can_be_made(number: int) -> None:
    one = ruin.draw(number, data=False)
    task = task_of(one["task"], one["steps"], None)
    network = network_of(one["network"], one["hosts"], one["steps"] * task.compute, None)
    assert len(network.ranks) == one["hosts"]
    assert is_steady(one["network"]) == (one["network"] not in ruin.CHANGING)


def test_auto_is_blamed_for_a_job_that_every_uncompressed_run_survives() -> None:
    found = [record(1, auto=True, plain=False), record(2, auto=False, plain=False)]
    text = ruin.page(found, {1: [{"plain_ruined": False}] * 4}, "command")
    assert "ruined 1 of 2 jobs, uncompressed training 0; 1 of `auto`'s" in text


def test_a_job_that_is_ruined_uncompressed_with_another_seed_is_unstable_by_itself() -> None:
    found = [record(1, auto=True, plain=False), record(2, auto=False, plain=True)]
    text = ruin.page(found, {1: [{"plain_ruined": True}, {"plain_ruined": False}]}, "command")
    assert "ruined 1 of 2 jobs, uncompressed training 1; 0 of `auto`'s" in text
    assert "Job 1 was ruined uncompressed with 1 of 2 other seeds." in text
