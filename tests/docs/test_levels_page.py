"""docs/reference/levels.md: every level of the table parses, and sends what the table says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradwire.compress.build import build_codec, check_chain
from gradwire.level import STAGES, Level

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "levels.md").read_text()
ROWS = re.findall(r"^\| (`.+?) \| .+? \| (.+?) \|$", PAGE, re.MULTILINE)
ELEMENTS = 1_000_000


@pytest.mark.parametrize(("names", "factor"), ROWS, ids=[row[0] for row in ROWS])
def test_a_level_sends_so_many_times_less(names: str, factor: str) -> None:
    for name in re.findall(r"`([^`]+)`", names):
        level = Level.parse(name)
        check_chain(level)
        if factor.startswith("by"):
            continue
        sent = 4 * ELEMENTS if level.off else build_codec(level).size_of(ELEMENTS)
        assert 4 * ELEMENTS / sent == pytest.approx(float(factor), rel=0.02)


def test_every_stage_is_in_the_table() -> None:
    listed = {
        stage.partition(":")[0]
        for row in ROWS
        for name in re.findall(r"`([^`]+)`", row[0])
        for stage in name.split("+")
    }
    assert listed == set(STAGES)
