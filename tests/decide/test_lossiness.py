"""Lossiness: one order of all levels, by kept share, rank and bits; a cap allows what is not lossier."""

from __future__ import annotations

import itertools

import pytest

from gradwire.decide.ladder import LADDER
from gradwire.decide.lossiness import at_most, least_ratio, limited, lossiness
from gradwire.level import VALUES, Level, bits

# Least lossy first; levels of one entry are equally lossy.
ORDER = [
    ["off"],
    ["fp16", "bf16", "fp16+zstd"],
    ["int8", "int8+zstd"],
    ["int4"],
    ["prune:0.5"],
    ["topk:0.25+int8", "prune:0.5+topk:0.5+int8"],
    ["lowrank:8"],
    ["lowrank:4"],
    ["lowrank:1"],
    ["topk:0.1", "exactk:0.1"],
    ["topk:0.1+int8", "sharedk:0.1+int8", "randk:0.1+int8"],
    ["topk:0.03+fp16"],
    ["topk:0.03+int8"],
    ["topk:0.01+int8"],
    ["topk:0.01+int4"],
    ["topk:0.001+int8"],
]


def test_levels_are_ordered_by_kept_share_then_rank_then_bits() -> None:
    keys = [{lossiness(Level.parse(text)) for text in entry} for entry in ORDER]
    assert all(len(equal) == 1 for equal in keys)
    found = [equal.pop() for equal in keys]
    assert found == sorted(set(found))


def test_every_value_format_has_its_place_by_its_bits() -> None:
    """A format that is added to level.py needs no entry here: its name says how many bits it has."""
    sizes = [bits(values) for values in VALUES]
    assert sizes == sorted(sizes, reverse=True), "level.py lists formats with more bits first"
    order = [lossiness(Level(values=values)) for values in VALUES]
    assert order == sorted(order)
    assert order[-1] < lossiness(Level.parse("topk:0.999"))


def test_off_is_the_least_lossy_rung() -> None:
    assert min((lossiness(rung.level), rung.level) for rung in LADDER)[1].off


@pytest.mark.parametrize(
    ("cap", "allowed", "forbidden"),
    [
        ("off", ["off"], ["fp16", "int8", "int8+zstd"]),
        ("fp16", ["off", "fp16", "bf16"], ["int8", "topk:0.5"]),
        ("int4", ["off", "fp16", "int8", "int4"], ["topk:0.5", "lowrank:64", "topk:0.1+int8"]),
        ("lowrank:4", ["int4", "lowrank:4", "lowrank:8", "topk:0.25+int8"], ["lowrank:2", "topk:0.1+int8"]),
        ("topk:0.25", ["int4", "topk:0.25+int4"], ["lowrank:4", "lowrank:64", "topk:0.1+int8"]),
        ("topk:0.1", ["int4", "lowrank:1", "lowrank:4", "topk:0.1+int8"], ["topk:0.09", "topk:0.03+int8"]),
        ("topk:0.03", ["int4", "lowrank:4", "topk:0.03+int8", "sharedk:0.03+int4"], ["topk:0.01+int8"]),
        ("topk:0.03+int8", ["topk:0.03+fp16", "topk:0.03+int8", "topk:0.1+int4"], ["topk:0.03+int4"]),
    ],
)
def test_a_cap_allows_what_is_not_lossier(cap: str, allowed: list[str], forbidden: list[str]) -> None:
    level = Level.parse(cap)
    assert [text for text in allowed if not at_most(Level.parse(text), level)] == []
    assert [text for text in forbidden if at_most(Level.parse(text), level)] == []


def test_what_a_cap_allows_a_lossier_cap_allows_too() -> None:
    levels = sorted({Level.parse(text) for entry in ORDER for text in entry}, key=lossiness)
    for lower, higher in itertools.pairwise(levels):
        assert all(at_most(level, higher) for level in levels if at_most(level, lower))


@pytest.mark.parametrize(
    ("level", "cap", "sent"),
    [
        ("int8", "int4", "int8"),
        ("topk:0.01+int8", "int4", "int4"),
        ("topk:0.01+int8", "topk:0.03", "topk:0.03+int8"),
        ("topk:0.01+int8", "topk:0.03+fp16", "topk:0.03+fp16"),
        ("topk:0.01+int8", "lowrank:4", "lowrank:4"),
        ("lowrank:2", "lowrank:4", "lowrank:4"),
        ("lowrank:2", "topk:0.5", "topk:0.5"),
    ],
)
def test_a_lossier_level_becomes_the_cap_with_its_own_value_format(level: str, cap: str, sent: str) -> None:
    found = limited(Level.parse(level), Level.parse(cap))
    assert str(found) == sent
    assert at_most(found, Level.parse(cap))


@pytest.mark.parametrize(
    ("cap", "ratio"),
    [("off", 1.0), ("fp16", 0.5), ("int8", 0.25), ("int4", 0.125), ("topk:0.03", 0.03), ("lowrank:4", 0.1)],
)
def test_a_cap_as_the_ratio_of_a_controller_that_counts_in_shares(cap: str, ratio: float) -> None:
    assert least_ratio(Level.parse(cap)) == ratio
    assert least_ratio(None) == 0.0
