"""`auto` finds the rank that a job needs: what a rank leaves waiting makes it dear, and the next is predicted."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from gradwire.decide.auto import Auto
from gradwire.level import Level
from gradwire.types import StepFacts
from tests.decide.test_closed_loop import WARM, Machine

pytestmark = pytest.mark.slow  # with the other closed loops: some hundred decisions each


@dataclass
class WaitingMachine(Machine):
    """A machine whose job leaves `waiting[rank]` in the residual of a full rank; it fills within some steps."""

    waiting: dict[int, float] = field(default_factory=dict)
    filled: int = 0

    def step(self, level: Level, rng: random.Random) -> StepFacts:
        self.filled = min(10, self.filled + 1) if level.select == "lowrank" else 0
        residual = self.waiting.get(level.rank, 0.02) * max(1, self.filled) / 10
        return replace(super().step(level, rng), residual=residual, adaptive=True)


def levels(waiting: dict[int, float]) -> list[str]:
    machine = WaitingMachine(mbit=20, trip=0.02, turns=0.002, noise=0.02, waiting=waiting)
    return [str(level) for level in machine.run(Auto(), WARM + 150).levels]


def changes(found: list[str]) -> int:
    return sum(one != other for one, other in pairwise(found[30:]))


def test_a_job_that_rank_32_holds_stays_there() -> None:
    found = levels({32: 0.3, 64: 0.1, 16: 1.1, 4: 4.0})
    assert found[60:].count("lowrank:32+int4") >= len(found[60:]) - 2, "and single steps that measure the network"


def test_a_job_that_needs_more_rank_gets_it() -> None:
    found = levels({32: 1.2, 64: 0.45, 16: 3.0, 4: 9.0})
    assert 20 <= found.count("lowrank:32+int4") <= 45
    assert set(found[100:]) == {"lowrank:64+int4"}
    assert changes(found) <= 3


def test_a_job_that_no_rank_holds_goes_back_to_rounding() -> None:
    found = levels({32: 8.0, 64: 3.4, 16: 14.0, 4: 20.0})
    assert not any(level.startswith("lowrank") for level in found[100:])
    assert "lowrank:64+int4" not in found, "predicted as dear from what 32 leaves"
    assert changes(found) <= 3


def test_a_job_that_needs_less_rank_gets_it() -> None:
    found = levels({32: 0.05, 64: 0.02, 16: 0.19, 4: 2.7})
    assert set(found[-50:]) == {"lowrank:16+int4"}
    assert changes(found) <= 3


def test_a_job_that_loses_more_by_less_rank_than_predicted_returns() -> None:
    found = levels({32: 0.15, 64: 0.02, 16: 3.0, 4: 9.0})
    assert found[-50:].count("lowrank:32+int4") >= 48
    assert found.count("lowrank:16+int4") <= 45
    assert changes(found) <= 4
