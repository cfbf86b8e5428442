"""Benchmark scripts import names of gradwire that exist, and documentation names scripts that exist."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

import recording_cost

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "benchmarks").rglob("*.py"))


def imported(path: Path) -> list[tuple[str, str]]:
    """(module, name) of every import from gradwire or the harness, those inside functions included."""
    nodes = ast.walk(ast.parse(path.read_text()))
    found = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    return [
        (str(node.module), alias.name)
        for node in found
        for alias in node.names
        if str(node.module).partition(".")[0] in ("gradwire", "harness")
    ]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_what_a_script_imports_exists(path: Path) -> None:
    for module, name in imported(path):
        if module not in ("harness.torchft_contestant", "harness.hivemind_contestant"):
            assert hasattr(import_module(module), name) or import_module(f"{module}.{name}")


@pytest.mark.parametrize("transport", ["group", "tcp"])
def test_the_methods_that_recording_cost_times_exist(transport: str) -> None:
    for owner, name in recording_cost.timed_methods(transport):
        assert callable(getattr(owner, name))


def test_every_script_that_a_page_names_exists() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs" / "results").glob("*.json")]
    named = {(page.name, name) for page in pages for name in re.findall(r"benchmarks/([\w/]+\.py)", page.read_text())}
    assert [entry for entry in sorted(named) if not (ROOT / "benchmarks" / entry[1]).is_file()] == []


def test_every_script_is_listed_in_the_page_about_benchmarks() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    cases = {path.name for path in SCRIPTS if "harness.case import" in path.read_text() and "Case(" in path.read_text()}
    assert [name for name in sorted(cases) if f"`{name}`" not in page] == []
