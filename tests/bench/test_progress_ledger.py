"""The progress benchmark's ledger: what is kept is exact and small, survives a killed run, and knows its code."""

from __future__ import annotations

import ast
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from harness.progress import tables
from harness.progress.fingerprint import CONTROL, NOT_TRAINING, SOURCES, TRAINING, code_of, files_of
from harness.progress.ledger import Ledger
from harness.progress.packing import DECIMALS, packed, rounded, unpacked
from harness.progress.runs import Setup, Work
from harness.progress.summary import of_other_code

TIMED = {"kind": "time", "seed": 1}


def lines(folder: Path, kind: str = "time") -> list[str]:
    return (folder / f"{kind}.jsonl").read_text().splitlines()


# ---- packing ---------------------------------------------------------------------------------------------------------
def noisy(count: int = 1000) -> dict[str, list[float]]:
    """A run as runs are: losses with the noise of batches, seconds with jitter."""
    rng = random.Random(1)
    losses = [1 + 2 * step**-0.4 + rng.gauss(0, 0.1) for step in range(1, count + 1)]
    seconds = [0.05 * step * (1 + 0.001 * rng.random()) for step in range(1, count + 1)]
    return {"losses": rounded("losses", losses), "seconds": rounded("seconds", seconds)}


def test_series_are_restored_exactly_and_take_little() -> None:
    run = noisy()
    text = json.dumps(packed(run))
    assert unpacked(json.loads(text)) == run
    assert len(text) < 5500


@pytest.mark.parametrize(
    "series", [[], [1.5], [2.0, math.nan], [math.inf, 1.0], [1e9, 2e9], [-0.00001, 0.00003, -7.0], [0.0, 0.0]]
)
def test_a_series_that_cannot_be_packed_stays_as_it_is(series: list[float]) -> None:
    found = unpacked(json.loads(json.dumps(packed({"losses": series, "held_out": 1.23456789}))))
    assert str(found) == str({"losses": series, "held_out": 1.23456789})


def test_rounding_is_what_a_record_has_when_it_is_read_again() -> None:
    assert rounded("seconds", [1 / 3]) == [round(1 / 3, DECIMALS["seconds"])]


# ---- the files -------------------------------------------------------------------------------------------------------
def test_every_kind_has_its_own_file_and_lines_are_only_appended(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.add(TIMED, "a", {"seconds": [1.0, 2.0]})
    before = (tmp_path / "time.jsonl").read_bytes()
    ledger.add(TIMED | {"seed": 2}, "a", {"seconds": [1.0, 2.0]})
    ledger.add(TIMED | {"kind": "train"}, "a", {"losses": [1.0, 2.0]})
    assert (tmp_path / "time.jsonl").read_bytes().startswith(before)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["time.jsonl", "train.jsonl"]


def test_what_was_added_is_what_a_new_ledger_reads(tmp_path: Path) -> None:
    run = noisy(50) | {"levels": {"kinds": ["off"], "order": [[0, 50]]}, "held_out": 0.1234567}
    added = Ledger(tmp_path, made={"made": ["abc", "2026-01-01"]}).add(TIMED, "a", run)
    read = Ledger(tmp_path).get(TIMED, "a")
    assert read == added
    assert read is not None
    assert {name: read[name] for name in run} == run
    assert read["made"] == ["abc", "2026-01-01"]


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_line_that_was_cut_short_is_run_again_and_the_next_one_is_kept(cut: int, tmp_path: Path) -> None:
    first, second, third = ({"kind": "time", "seed": seed} for seed in (1, 2, 3))
    for one in (first, second):
        Ledger(tmp_path).add(one, "", {"seconds": [1.0, 2.0]})
    file = tmp_path / "time.jsonl"
    file.write_bytes(file.read_bytes()[:-cut])
    Ledger(tmp_path).add(third, "", {"seconds": [3.0, 4.0]})
    known = Ledger(tmp_path)
    assert known.get(first, "") is not None
    assert (known.get(second, "") is None) == (cut > 1), "without its line end a line is whole"
    assert known.get(third, "") is not None


def test_a_line_of_damaged_numbers_is_ignored(tmp_path: Path) -> None:
    Ledger(tmp_path).add(TIMED, "", noisy(50))
    file = tmp_path / "time.jsonl"
    record = json.loads(file.read_text())
    file.write_text(json.dumps(record | {"losses": record["losses"][:-10]}) + "\n")
    assert Ledger(tmp_path).get(TIMED, "") is None


def test_lines_of_two_branches_merged_in_any_order_are_all_known(tmp_path: Path) -> None:
    for branch, seed in (("ours", 1), ("theirs", 2)):
        Ledger(tmp_path / branch).add(TIMED | {"seed": seed}, "", {"seconds": [1.0, 2.0]})
    merged = lines(tmp_path / "theirs") + lines(tmp_path / "ours")
    (tmp_path / "time.jsonl").write_text("\n".join(merged) + "\n")
    assert all(Ledger(tmp_path).get(TIMED | {"seed": seed}, "") for seed in (1, 2))


def test_tidying_keeps_the_last_run_of_each_settings(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for code, seed in (("old", 1), ("old", 2), ("new", 1)):
        ledger.add(TIMED | {"seed": seed}, code, {"seconds": [float(seed), 2.0]})
    assert Ledger(tmp_path).tidy() == 1
    known = Ledger(tmp_path)
    assert known.get(TIMED, "old") is None
    assert known.get(TIMED, "new") == ledger.get(TIMED, "new")
    assert known.get(TIMED | {"seed": 2}, "old") is not None
    assert known.tidy() == 0


# ---- code ------------------------------------------------------------------------------------------------------------
def test_a_run_of_other_code_is_used_only_if_asked_for_and_then_named_once(tmp_path: Path) -> None:
    settings = {"kind": "whole", "level": "auto", "task": "gpt", "network": "lte", "seed": 1}
    Ledger(tmp_path, made={"made": ["abc", "2026-01-01"]}).add(settings, "old", {"seconds": [1.0]})
    assert Ledger(tmp_path).get(settings, "new") is None
    lenient = Ledger(tmp_path, any_code=True)
    assert lenient.get(settings, "new") == lenient.get(settings, "new")
    (row,) = of_other_code(lenient)
    assert (row["runs"], row["networks"], row["made"]) == (1, ["lte"], ["abc of 2026-01-01"])
    assert tables.other_code_table([row])[-1] == "| whole | `auto` | gpt | lte | 1 | abc of 2026-01-01 |"


def test_code_is_other_code_when_it_does_something_else_and_not_when_it_says_something_else(tmp_path: Path) -> None:
    hashes = []
    for number, text in enumerate(('"""A."""\nx = 1\n', '"""B."""\n# why\nx = 1\n', "x = 2\n")):
        root = tmp_path / str(number)
        (root / "part").mkdir(parents=True)
        (root / "part" / "module.py").write_text(text)
        hashes.append(code_of(("part",), root))
    assert hashes[0] == hashes[1] != hashes[2]


def imported(module: str) -> set[str]:
    """The modules of the package that one imports, itself included, as paths under it; what they import too."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        file = SOURCES / f"{name.replace('.', '/')}.py"
        file = file if file.exists() else SOURCES / name.replace(".", "/") / "__init__.py"
        if not file.exists() or (path := str(file.relative_to(SOURCES))) in found:
            continue
        found.add(path)
        if path.startswith("demo/"):
            continue  # its model and data are tasks; the rest of the demo is not used
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gradwire"):
                inside = (node.module or "").removeprefix("gradwire").lstrip(".")
                waiting += [*filter(None, [inside]), *(f"{inside}.{one.name}".lstrip(".") for one in node.names)]
    return found


# Imported by trainings and without effect on a loss: types and their checks, what operations are called, and copies of
# device memory, which virtual time has none of.
PLUMBING = {
    "__init__.py", "closing.py", "device/base.py", "device/pinned_copy.py", "errors.py", "suggest.py", "types.py",
    "units.py", "demo/__init__.py", "simulate/__init__.py", "transport/__init__.py", "transport/lanes/__init__.py",
    "transport/lanes/base.py", *NOT_TRAINING,
}  # fmt: skip


def test_the_fingerprint_of_a_training_covers_what_workers_import() -> None:
    covered = {str(file.relative_to(SOURCES)) for file in files_of(TRAINING)}
    assert imported("simulate.workers") - covered - PLUMBING == set()


def test_no_controller_estimator_or_clock_is_in_the_fingerprint_of_a_training() -> None:
    covered = {str(file.relative_to(SOURCES)) for file in files_of(TRAINING)}
    decided = {one for one in covered if one.startswith(("decide", "sense", "runtime", "network"))}
    assert decided == {"decide/fixed.py"}
    assert not covered & set(NOT_TRAINING)
    assert {str(file.relative_to(SOURCES)) for file in files_of(CONTROL)} > covered | set(NOT_TRAINING)


@pytest.mark.parametrize(("kind", "expected"), [("train", True), ("peer", True), ("whole", True), ("time", False)])
def test_what_trains_depends_on_torchs_version_and_what_is_timed_does_not(
    kind: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: dict[str, Any] = {"task": "mlp", "level": "int8", "seed": 1}
    work = Work(Setup(2, 2).settings(kind, **own), Setup(2, 2))
    before = work.code
    monkeypatch.setattr("harness.progress.runs.torch_of", lambda: "0.1")
    assert (work.code != before) is expected


@pytest.mark.parametrize(
    ("task", "data", "expected"), [("gpt", False, True), ("gpt", True, False), ("mlp", False, False)]
)
def test_the_built_in_text_counts_where_it_is_what_is_trained_on(task: str, data: bool, expected: bool) -> None:
    setup = Setup(2, 2, directory=Path("data") if data else None)
    assert (" text " in Work(setup.settings("train", task=task, level="int8", seed=1), setup).code) is expected
