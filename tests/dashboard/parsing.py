"""Reads values from a page and events from a recording, for tests that compare both."""

from __future__ import annotations

import re
from typing import Any

from gradwire.observe.reader import Record


def events(records: list[Record], kind: type, rank: int | None = None) -> list[Any]:
    return [record.event for record in records if isinstance(record.event, kind) and rank in (None, record.rank)]


def number(text: str) -> float:
    """The first number of a text, its unit's prefix taken into account."""
    found = re.search(r"(-?[\d.\u202f]+)\s*([GMkmµ%]?)", text)
    assert found, text
    factor = {"G": 1e9, "M": 1e6, "k": 1e3, "m": 1e-3, "µ": 1e-6, "%": 0.01}.get(found[2], 1.0)
    return float(found[1].replace("\u202f", "")) * factor
