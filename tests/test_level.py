"""Levels: text is parsed and printed back, and errors name the wrong stage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.errors import ConfigError
from gradwire.level import SPARSE, VALUES, Level


@pytest.mark.parametrize(
    "text", ["off", "fp16", "int8", "int2", "topk:0.01+int8", "prune:0.5+topk:0.01+fp16+zstd", "lowrank:4", "zstd"]
)
def test_the_canonical_text_parses_back(text: str) -> None:
    assert str(Level.parse(text)) == text


@given(
    select=st.sampled_from(("all", *SPARSE)),
    ratio=st.sampled_from([0.001, 0.01, 0.25]),
    values=st.sampled_from(VALUES),
    prune=st.sampled_from([0.0, 0.3]),
    lossless=st.booleans(),
)
def test_every_level_parses_back_from_its_text(
    select: str, ratio: float, values: str, prune: float, lossless: bool
) -> None:
    level = Level(select, ratio if select != "all" else 1.0, 0, values, prune, lossless)  # type: ignore[arg-type]
    assert Level.parse(str(level)) == level


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("topk", "topk needs a share"),
        ("topk:2", "topk needs a share"),
        ("lowrank:0", "rank from 1"),
        ("lowrank:²", "rank from 1"),
        ("prune:0.9999999", "prune needs a share"),
        ("int9", "'int9'"),
        ("int8+topk:0.1", "in the wrong order"),
        ("int8+int8", "repeated"),
        ("", "is not a stage"),
    ],
)
def test_errors_name_the_stage_and_what_is_allowed(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        Level.parse(text, setting="GRADWIRE_LEVEL")
    assert "GRADWIRE_LEVEL" in str(caught.value)


def test_off_changes_nothing_and_everything_else_does() -> None:
    assert Level.parse("off").off
    assert not Level.parse("off").lossy
    assert Level.parse("fp16").lossy
    assert not Level.parse("zstd").lossy
