"""The published results in one command: every case of the suite at one revision, resumable, each with its time budget.

    python benchmarks/results.py                     hours; continues where it stopped
    python benchmarks/results.py --quick             minutes; shows that every case runs
    python benchmarks/results.py peers delays        these cases only
    python benchmarks/results.py --write             copies complete results into docs/results and makes the tables

Each case runs as a process of its own and writes into runs/results. What was finished at this revision is not run
again. A case that takes longer than its budget is ended and marked. A case whose lab did not keep up is run again at
twice the dilation, up to MOST_DILATION; if it still did not, its result is marked and not written to docs/results.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from rich.console import Console
from rich.table import Table

from harness.facts import machine_facts
from harness.suite import SUITE, SuiteCase

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = ROOT / "docs" / "results"
RUNS: Final = ROOT / "runs" / "results"
MOST_DILATION: Final = 32.0
KEPT_UP: Final = "the lab kept up"
# Seconds in which an interrupted case closes its lab before it is killed.
GRACE: Final = 20.0

Outcome = Literal["done", "late", "failed", "over budget", "no data"]


@dataclass(frozen=True, slots=True)
class CaseRecord:
    """How one case ended; kept as JSON beside its result."""

    name: str
    outcome: Outcome
    revision: str
    dilation: float
    seconds: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run, and where it is written."""

    cases: tuple[SuiteCase, ...]
    quick: bool
    folder: Path
    revision: str
    scripts: Path
    data: Path | None = None


def run_all(plan: Plan, console: Console) -> list[CaseRecord]:
    """Every case that has no record of this revision; the records of all."""
    records = []
    for case in plan.cases:
        known = read_record(plan, case)
        if known is not None:
            console.print(f"{case.name}: {known.outcome} already")
            records.append(known)
            continue
        console.print(f"[bold]{case.name}[/bold]: {case.question}")
        record = run_case(plan, case, console)
        place = plan.folder / case.name
        place.mkdir(parents=True, exist_ok=True)
        (place / "record.json").write_text(json.dumps(asdict(record), indent=1) + "\n")
        records.append(record)
    return records


def read_record(plan: Plan, case: SuiteCase) -> CaseRecord | None:
    """The record of a finished case, if it is of this revision; what failed is tried again."""
    try:
        found = CaseRecord(**json.loads((plan.folder / case.name / "record.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return found if found.revision == plan.revision and found.outcome in ("done", "late") else None


def run_case(plan: Plan, case: SuiteCase, console: Console) -> CaseRecord:
    """Run a case at rising dilation until its lab keeps up."""
    began, dilation, late = time.monotonic(), 1.0, ""
    if case.needs_data and (plan.data is None or not plan.data.is_dir()):
        return CaseRecord(case.name, "no data", plan.revision, dilation, 0.0, "give --data DIR")
    while True:
        outcome, detail = _try(plan, case, dilation)
        if outcome == "done":
            late = _late(plan.folder / case.name)
            outcome = "late" if late else "done"
        again = outcome == "late" and case.dilates and not plan.quick and 2 * dilation <= MOST_DILATION
        if not again:
            return CaseRecord(case.name, outcome, plan.revision, dilation, time.monotonic() - began, detail or late)
        dilation *= 2
        console.print(f"{case.name}: {late}; again with time stretched {dilation:g} times")


def _try(plan: Plan, case: SuiteCase, dilation: float) -> tuple[Outcome, str]:
    """One process; its output goes into a file beside the result."""
    place = plan.folder / case.name
    place.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(plan.scripts / case.script), *(case.quick if plan.quick else case.full)]
    command += ["--out", str(place)]
    command += ["--dilate", f"{dilation:g}"] if case.dilates and dilation > 1 else []
    command += ["--data", str(plan.data)] if case.needs_data else []
    minutes = (case.quick_minutes if plan.quick else case.minutes) * dilation
    with (place / "output.txt").open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(timeout=60 * minutes)
        except subprocess.TimeoutExpired:
            _end(process)
            return "over budget", f"took longer than {minutes:g} minutes"
        except BaseException:
            _end(process)
            raise
    if code:
        last = (place / "output.txt").read_text(errors="replace").strip().splitlines()[-1:]
        return "failed", f"exit code {code}: {''.join(last)[:200]}"
    return "done", ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt the whole group, so that the case closes its lab; kill what is left."""
    for number, grace in ((signal.SIGINT, GRACE), (signal.SIGKILL, None)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=grace)
            return


def _late(place: Path) -> str:
    """The first verdict in the case's results that says that its lab did not keep up."""
    for path in sorted(place.glob("*.json")):
        if path.name != "record.json" and (found := _late_in(json.loads(path.read_text()))):
            return found
    return ""


def _late_in(value: Any) -> str:
    if isinstance(value, dict):
        lab = value.get("lab")
        if isinstance(lab, str) and lab and not lab.startswith(KEPT_UP):
            return lab
        value = list(value.values())
    return next((found for one in value if (found := _late_in(one))), "") if isinstance(value, list) else ""


def publish(plan: Plan, records: Sequence[CaseRecord], pages: Path) -> list[str]:
    """Copy the results of complete cases; returns their names."""
    written = []
    for record in records:
        if record.outcome != "done":
            continue
        for path in sorted((plan.folder / record.name).iterdir()):
            if path.suffix in (".json", ".md", ".png") and path.name != "record.json":
                shutil.copy(path, pages / path.name)
        written.append(record.name)
    return written


def table(records: Sequence[CaseRecord]) -> Table:
    shown = Table(title="Results", title_justify="left")
    for column in ("case", "outcome", "dilation", "minutes", ""):
        shown.add_column(column, justify="right" if column in ("dilation", "minutes") else "left")
    for one in records:
        shown.add_row(one.name, one.outcome, f"{one.dilation:g}", f"{one.seconds / 60:.1f}", one.detail)
    return shown


def chosen(names: Sequence[str]) -> tuple[SuiteCase, ...]:
    known = {case.name: case for case in SUITE}
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"results: unknown case {unknown[0]!r}; use {', '.join(known)}")
    return tuple(known[name] for name in names) or SUITE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="names of cases; default: all")
    parser.add_argument("--quick", action="store_true", help="show that every case runs, in minutes")
    parser.add_argument("--data", type=Path, help="directory of Fashion-MNIST's IDX files")
    parser.add_argument("--write", action="store_true", help="write complete results to docs/results")
    parser.add_argument("--list", action="store_true", help="list the cases with their questions and budgets")
    options = parser.parse_args()
    cases, console = chosen(options.cases), Console()
    if options.list:
        for case in cases:
            console.print(f"{case.name:18} {case.minutes:4.0f} min  {case.question}", highlight=False)
        return
    revision = str(machine_facts()["revision"])
    if options.write and (options.quick or revision.endswith("+")):
        sys.exit("results: --write needs a full run of a committed tree; commit first, and leave --quick out")
    folder = RUNS.with_name("results-quick") if options.quick else RUNS
    plan = Plan(cases, options.quick, folder, revision, Path(__file__).parent, options.data)
    records = run_all(plan, console)
    console.print(table(records))
    if options.write:
        console.print(f"written: {', '.join(publish(plan, records, PAGES)) or 'nothing'}")
        subprocess.run([sys.executable, str(plan.scripts / "readme_table.py"), "--write"], check=True)
    if any(record.outcome in ("failed", "over budget") for record in records):
        sys.exit(1)


if __name__ == "__main__":
    main()
