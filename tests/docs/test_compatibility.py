"""docs/compatibility.md and the head of CHANGELOG.md state the version numbers that the code has."""

from __future__ import annotations

import re
from pathlib import Path

import gradwire
from gradwire import events
from gradwire.compress import frame, lossless
from gradwire.decide import decision_record
from gradwire.sense import pulse

ROOT = Path(__file__).parents[2]


def native(file: str, pattern: str) -> int:
    """A version that is written in the C++ sources."""
    found = re.search(pattern, (ROOT / "native" / file).read_text(encoding="utf-8"))
    assert found is not None, f"native/{file} has no {pattern}"
    return int(found[1])


VERSIONS = {
    "frame": frame.VERSION,
    "losslessly compressed frame": lossless.VERSION,
    "pulse": pulse.VERSION,
    "decision": decision_record.VERSION,
    "LTP": native("ltp/packet.h", r"kVersion = (\d+)"),
    "stream": native("stream/greeting.cpp", r'"gwS(\d)"'),
}


def rows() -> dict[str, str]:
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| ([^|]+?) \| (\d[\d.]*)[, |]", page, re.MULTILINE))


def test_the_page_of_compatibility_states_the_versions_of_the_code() -> None:
    stated = {re.sub(r" \(.*\)|TCP and shared-memory ", "", name): number for name, number in rows().items()}
    expected = {**VERSIONS, "package": gradwire.__version__, "event schema": events.VERSION}
    assert stated.items() >= {name: str(number) for name, number in expected.items()}.items(), stated


def test_the_head_of_the_changelog_states_the_versions_of_the_wire_layouts() -> None:
    head = " ".join((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("##")[0].split())
    assert ", ".join(f"{name} {number}" for name, number in VERSIONS.items()) in head
