"""plan_lab.py writes results only to the directory given by --out."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

import plan_lab
from readme_table import ROOT


@pytest.fixture(autouse=True)
def nothing_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def case(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
        return {"rows": arguments.planners}

    monkeypatch.setattr("plan_lab.CASES", {"nine": case, "aws": case})


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr("sys.argv", ["plan_lab.py", *words])
    plan_lab.main()


def test_a_result_is_added_to_those_of_other_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "new"
    run(monkeypatch, "nine", "--planners", "star", "--out", str(out))
    run(monkeypatch, "aws", "--planners", "ring", "--out", str(out))
    found = json.loads((out / "plan-lab.json").read_text())
    assert {name: case["rows"] for name, case in found.items()} == {"nine": ["star"], "aws": ["ring"]}
    assert found["nine"]["command"] == "python benchmarks/plan_lab.py nine --planners star --out DIR"


def test_without_out_no_result_file_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []
    monkeypatch.setattr(Path, "write_text", lambda path, text, *more: written.append(path))
    run(monkeypatch, "nine", "--planners", "star,loadaware")
    assert (ROOT / "docs" / "results" / "plan-lab.json").is_file()
    assert written == []
