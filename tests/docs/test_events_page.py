"""docs/events.md names every event and every field, and no others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from gradwire import events

PAGE = (Path(__file__).parents[2] / "docs" / "events.md").read_text()
ROWS = {row[1]: row[0] for row in re.finditer(r"^\| `(\w+)` \|.*$", PAGE, re.MULTILINE)}
EVENTS = {kind.__struct_config__.tag: kind for kind in get_args(events.Event)}


def test_the_table_has_a_row_for_every_event_and_no_other() -> None:
    assert set(ROWS) == set(EVENTS)
    assert f"schema version {events.VERSION}" in PAGE


def test_every_row_names_every_field() -> None:
    for tag, kind in EVENTS.items():
        for field in set(kind.__struct_fields__) - {"at"}:
            assert f"`{field}`" in ROWS[tag], f"{tag} has a field {field} that its row does not name"
