"""The guide is correct: its example parses, its list of presets is complete."""

from __future__ import annotations

import re
from pathlib import Path

from gradwire.network import PRESETS, parse_network

GUIDE = Path(__file__).parents[2] / "docs" / "lab.md"


def test_the_guides_network_file_is_valid() -> None:
    text = re.search(r"```toml\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert text is not None
    example = "\n".join(line for line in text[1].splitlines() if not line.startswith("down ="))
    network = parse_network(example)
    assert len(network.ranks) == 4
    assert network.changes
    assert network.cross


def test_the_guide_lists_every_preset_with_its_sentence() -> None:
    text = GUIDE.read_text()
    assert all(f"`{name}`" in text and preset.about in text for name, preset in PRESETS.items())
