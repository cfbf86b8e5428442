"""`make results`: cases are resumed, end at their budget, and are repeated at a higher dilation where a lab is late."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from harness.suite import SUITE, SuiteCase
from results import CaseRecord, Plan, chosen, publish, read_record, run_all

ROOT = Path(__file__).parents[2]
# Writes a result whose lab keeps up from dilation 4 on, and counts its runs.
SCRIPT = """
import argparse, json, pathlib, time
parser = argparse.ArgumentParser()
parser.add_argument("--out", type=pathlib.Path)
parser.add_argument("--dilate", type=float, default=1)
parser.add_argument("--fail", action="store_true")
parser.add_argument("--hang", action="store_true")
options = parser.parse_args()
with (options.out / "runs.txt").open("a") as file:
    file.write("x")
if options.hang:
    time.sleep(600)
lab = "the lab kept up" if options.dilate >= 4 else "THE LAB COULD NOT KEEP UP"
(options.out / "case.json").write_text(json.dumps({"rows": [{"lab": lab}]}))
(options.out / "case.md").write_text("# case")
assert not options.fail, "it failed"
"""


def plan_of(folder: Path, case: SuiteCase, revision: str = "a", quick: bool = False) -> Plan:
    (folder / "case.py").write_text(SCRIPT)
    return Plan((case,), quick, folder / "runs", revision, folder)


def run(plan: Plan) -> CaseRecord:
    (record,) = run_all(plan, Console(quiet=True))
    return record


def runs(plan: Plan) -> int:
    return len((plan.folder / "case" / "runs.txt").read_text())


def test_a_late_lab_is_run_again_at_a_higher_dilation_and_a_done_case_not_again(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, SuiteCase("case", "why?", "case.py", ()))
    record = run(plan)
    assert (record.outcome, record.dilation) == ("done", 4.0)
    assert runs(plan) == 3
    assert run(plan) == record
    assert runs(plan) == 3, "it is resumed"
    assert read_record(plan_of(tmp_path, plan.cases[0], revision="b"), plan.cases[0]) is None, "of another revision"


def test_a_late_case_that_cannot_be_dilated_is_not_published(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, SuiteCase("case", "why?", "case.py", (), dilates=False))
    record = run(plan)
    assert record.outcome == "late"
    pages = tmp_path / "pages"
    pages.mkdir()
    assert publish(plan, [record], pages) == []
    done = CaseRecord("case", "done", "a", 1.0, 1.0)
    assert publish(plan, [done], pages) == ["case"]
    assert {path.name for path in pages.iterdir()} == {"case.json", "case.md"}
    assert json.loads((pages / "case.json").read_text())["rows"]


@pytest.mark.parametrize(
    ("arguments", "outcome"), [(("--fail",), "failed"), (("--hang",), "over budget")], ids=["fails", "hangs"]
)
def test_a_case_that_fails_or_hangs_is_ended_named_and_tried_again(
    tmp_path: Path, arguments: tuple[str, ...], outcome: str
) -> None:
    plan = plan_of(tmp_path, SuiteCase("case", "why?", "case.py", arguments, minutes=0.05))
    assert run(plan).outcome == outcome
    assert run(plan).outcome == outcome
    assert runs(plan) == 2


def test_a_case_without_its_data_says_so(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, SuiteCase("case", "why?", "case.py", (), needs_data=True))
    assert run(plan).outcome == "no data"


def test_every_case_of_the_suite_has_a_script_a_question_and_a_budget() -> None:
    assert chosen([]) == SUITE
    for case in SUITE:
        assert (ROOT / "benchmarks" / case.script).is_file()
        assert case.question
        assert 0 < case.quick_minutes <= case.minutes
    with pytest.raises(SystemExit, match="unknown case 'peer'"):
        chosen(["peer"])
