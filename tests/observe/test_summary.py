"""The summary's line of levels."""

from __future__ import annotations

from gradwire.observe.summary import NAMED, _most_used


def test_levels_are_named_most_used_first() -> None:
    assert _most_used({"int4": 2, "off": 7, "int8": 2}) == "off x7, int4 x2, int8 x2"


def test_of_a_warm_up_with_many_levels_the_most_used_are_named_and_the_others_counted() -> None:
    text = _most_used({f"topk:{share}": 1 for share in range(40)} | {"topk:0.01": 60})
    assert text.startswith("topk:0.01 x60, ")
    assert text.endswith(f", {41 - NAMED} more x{41 - NAMED}")
    assert text.count(", ") == NAMED
