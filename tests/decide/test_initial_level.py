"""The level before any step was seen: mild where the startup probe found a fast network, sparse where it is slow."""

from __future__ import annotations

import pytest

from gradwire.decide.initial_level import INITIAL_LEVELS, initial_level
from gradwire.decide.ladder import LADDER
from gradwire.level import Level
from gradwire.sense.pulse import Pulse, Stamps, pack, unpack
from gradwire.units import Rate

SIZES = dict(zip(INITIAL_LEVELS, (6_000_000, 1_500_000, 500_000, 200_000), strict=True))


@pytest.mark.parametrize(
    ("mbit", "level"),
    [(1000, "int8"), (200, "int8"), (100, "topk:0.1+int8"), (20, "topk:0.03+int8"), (1, "topk:0.01+int8")],
)
def test_the_least_lossy_level_that_is_quick(mbit: float, level: str) -> None:
    chosen = initial_level(float(Rate.from_mbit(mbit)), SIZES.__getitem__)
    assert chosen.level == Level.parse(level)
    assert "Mbit/s" in chosen.reason or "Gbit/s" in chosen.reason
    assert unpack(pack(Pulse(1, None, Stamps(), chosen))).decision == chosen, "other ranks receive it in full"


def test_an_unmeasured_network_gets_the_least_lossy_level() -> None:
    assert initial_level(None, SIZES.__getitem__).level == INITIAL_LEVELS[0]


def test_every_initial_level_is_a_rung() -> None:
    assert {*INITIAL_LEVELS} <= {rung.level for rung in LADDER}
