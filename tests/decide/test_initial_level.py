"""The level before any step was seen: off or mild where the startup probe found a fast network, dense always."""

from __future__ import annotations

import pytest

from gradwire.decide.decision_record import pack_decision, unpack_decision
from gradwire.decide.initial_level import INITIAL_LEVELS, initial_level
from gradwire.decide.ladder import LADDER
from gradwire.decide.lossiness import at_most, kept_share, limited
from gradwire.level import Level, bits
from gradwire.units import Rate

SIZES = {Level(): 24_000_000, **dict(zip(INITIAL_LEVELS, (6_000_000, 3_000_000), strict=True))}


@pytest.mark.parametrize(
    ("mbit", "level"),
    [(100_000, "off"), (20_000, "int8"), (1000, "int4"), (1, "int4")],
)
def test_the_level_with_the_least_predicted_time_to_accuracy(mbit: float, level: str) -> None:
    chosen = initial_level(float(Rate.from_mbit(mbit)), SIZES.__getitem__)
    assert chosen.level == Level.parse(level)
    assert "Mbit/s" in chosen.reason or "Gbit/s" in chosen.reason
    assert unpack_decision(pack_decision(chosen)) == chosen, "other ranks receive it in full"


@pytest.mark.parametrize("cap", ["off", "bf16", "int8", "int4", "lowrank:4", "topk:0.05", "topk:0.001"])
def test_the_cap_holds_from_the_first_step(cap: str) -> None:
    lossiest = Level.parse(cap)
    sizes = lambda level: int(1e9 * kept_share(level) * bits(level.values))  # noqa: E731
    found = [initial_level(rate, sizes, lossiest).level for rate in (None, 1e-3, *(10.0**power for power in range(16)))]
    assert [str(level) for level in found if not at_most(level, lossiest)] == []
    lossiest_of_all = initial_level(1e-3, sizes).level
    assert found[1] == limited(lossiest_of_all, lossiest), "where nothing is quick, as lossy as the cap allows"


def test_an_unmeasured_network_gets_the_least_lossy_level() -> None:
    assert initial_level(None, SIZES.__getitem__).level == INITIAL_LEVELS[0]


def test_every_initial_level_is_a_rung() -> None:
    assert {*INITIAL_LEVELS} <= {rung.level for rung in LADDER}
