"""Figures: well-formed SVG without scripts, escaped names, labels inside the picture, a dark theme."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from harness.svg import WIDTH, Band, Bars, Trace, bar_figure, timeline_figure

BARS = bar_figure("a <title>", "note", ["one", "two"], [Bars("a & b", [2.0, None]), Bars("slow", [0.8, 30.0])])
LINE = timeline_figure(
    "title",
    "note",
    [Trace("carried", [(0.0, 10.0), (50.0, 20.0)], faint=True), Trace("believed", [(1.0, 9.0), (49.0, 19.0)])],
    [Band("off", 0.0, 25.0), Band("int8", 25.0, 50.0)],
)


def test_figures_are_well_formed_and_follow_the_theme() -> None:
    for svg in (BARS, LINE):
        tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(svg).iter()}
        assert "script" not in tags
        assert "prefers-color-scheme:dark" in svg
        places = [float(x) for x in re.findall(r'<text x="([-\d.]+)"', svg)]
        assert all(0 <= x <= WIDTH for x in places)


def test_a_bar_begins_at_one_and_a_missing_one_says_so() -> None:
    assert "a &amp; b" in BARS
    assert "a &lt;title&gt;" in BARS
    assert "did not reach it" in BARS
    assert "0.8x" in BARS
    rows = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="13"', BARS)
    (twice, _), (slow_begin, slow_width), (thirty, _) = [(float(x), float(width)) for x, width in rows]
    assert twice == thirty, "both begin at plain DDP"
    assert abs(slow_begin + slow_width - twice) < 0.2, "a slower one ends there"


def test_levels_are_named_in_their_bands() -> None:
    assert ">off</text>" in LINE
    assert "off · int8" in LINE
