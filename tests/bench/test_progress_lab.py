"""Whole runs in the lab: pacing, ranks' lines to one record, and the comparison with virtual time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.errors import LinkError
from gradwire.events import Decided
from harness.progress import lab_check, lab_runs, tables
from harness.progress.lab_check import LabCheck
from harness.progress.lab_runs import compared, merged, per_step, run_in_lab, verdict_of
from harness.progress.lab_worker import MARK, Decisions, LabSpec, Pace, ready_shares
from harness.progress.ledger import Ledger
from harness.progress.runs import Setup


class FakeTime:
    def __init__(self) -> None:
        self.now, self.slept = 0.0, 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds


def test_gradients_are_ready_in_proportion_to_their_size_last_parameter_first() -> None:
    assert ready_shares([torch.zeros(3), torch.zeros(1)]) == pytest.approx([1 / 3 + 2 / 3 / 4, 1.0])


def test_a_paced_step_takes_the_stated_compute_time_and_late_ones_are_counted() -> None:
    fake, net = FakeTime(), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    pace = Pace(list(net.parameters()), 0.3, fake.clock, fake.sleep)
    pace.begin()
    net(torch.ones(1, 4)).sum().backward()
    assert (fake.now, pace.late) == (pytest.approx(0.3), 0)
    pace.begin()
    loss = net(torch.ones(1, 4)).sum()
    fake.now += 0.5
    loss.backward()
    assert (fake.slept, pace.late) == (pytest.approx(0.3), 1)


def test_decisions_are_noted_once_per_level(tmp_path: Path) -> None:
    decisions = Decisions()
    for step, bucket, level in ((0, 0, "int8"), (0, 1, "int8"), (5, 0, "int4")):
        decisions(Decided(at=0.0, step=step, bucket=bucket, level=level, reason="why", version=1))
    assert decisions.found == [(0, "int8", "why"), (5, "int4", "why")]
    spec = LabSpec("mlp", "auto", 1, 60, 0.05, None)
    spec.write(tmp_path / "spec.json")
    assert LabSpec.read(tmp_path / "spec.json") == spec


def said(rank: int, losses: list[float], seconds: list[float], late: int = 0) -> str:
    report = {"rank": rank, "losses": losses, "seconds": seconds, "late": late, "decided": [[0, "int8", "why"]]}
    return f"a warning\n{MARK}{json.dumps(report)} trailing\n"


def test_ranks_lines_become_one_record_of_mean_losses_and_last_times() -> None:
    record = merged([said(1, [3.0, 1.0], [1.0, 2.5]), said(0, [1.0, 2.0], [1.1, 2.0])])
    assert record == {"losses": [2.0, 1.5], "seconds": [1.1, 2.5], "decided": [[0, "int8", "why"]]}
    with pytest.raises(LinkError, match="reported nothing"):
        merged(["no line"])


@pytest.mark.parametrize(
    ("verdict", "late", "kept_up"), [("the lab kept up", 0, True), ("the lab kept up", 2, False), ("NOT", 0, False)]
)
def test_a_run_kept_up_if_the_lab_and_the_compute_did(verdict: str, late: int, kept_up: bool) -> None:
    found = verdict_of(verdict, 4.0, [said(0, [], [], late), said(1, [], [])], 10)
    assert (found["kept_up"], found["dilate"]) == (kept_up, 4.0)


@pytest.mark.parametrize(("works_at", "expected"), [(4, (4, False)), (8, (8, True)), (99, (8, True))])
def test_a_run_that_did_not_keep_up_is_done_again_once_at_twice_the_dilation(
    monkeypatch: pytest.MonkeyPatch, works_at: float, expected: tuple[float, bool]
) -> None:
    def once(setup: Setup, settings: dict[str, Any], dilate: float) -> dict[str, Any]:
        return {"dilate": dilate, "verdict": "x", "kept_up": dilate >= works_at}

    monkeypatch.setattr(lab_runs, "_once", once)
    found = run_in_lab(Setup(10), {"dilate": 4})
    assert (found["dilate"], "first" in found) == expected


def lab_record(per_step: float, losses: list[float]) -> dict[str, Any]:
    seconds = [per_step * (step + 1) for step in range(len(losses))]
    facts = {"dilate": 8, "verdict": "the lab kept up", "late_compute": 0.0, "kept_up": True, "load": 1.0}
    return {"losses": losses, "seconds": seconds, "decided": [], **facts}


def test_virtual_time_is_compared_with_the_lab_by_seconds_per_step_and_losses() -> None:
    lab = lab_record(0.2, [2.0] * 30)
    virtual = {"losses": [2.0] * 20 + [2.5] * 10, "seconds": [0.21 * (step + 1) for step in range(30)], "levels": {}}
    row = compared(lab, virtual, [0.19 * (step + 1) for step in range(30)])
    assert row["seconds_per_step"] == [0.2, 0.21, 0.19]
    assert row["deviation"] == [0.05, -0.05]
    assert (row["loss_distance"], row["last_losses"]) == (0.5, [2.0, 2.5])
    (_, _, line) = tables.lab_table([{"task": "mlp", "network": "lte", "level": "int8", **row}])
    assert "0.210 (+5.0 %)" in line
    assert line.endswith("| 8 | yes |")


def test_the_first_steps_do_not_count() -> None:
    assert per_step([9.0, 9.1, 9.2, 9.3, 10.0, 10.5, 11.0]) == pytest.approx(0.5)


def test_a_lab_check_runs_what_is_missing_and_states_every_complete_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran = []

    def in_lab(setup: Setup, settings: dict[str, Any]) -> dict[str, Any]:
        ran.append(settings["level"])
        return lab_record(0.1, [2.0] * setup.steps)

    monkeypatch.setattr(lab_check, "run_in_lab", in_lab)
    monkeypatch.setattr(lab_check, "LAB_CELLS", (("mlp", "20mbit", ("int8", "auto")),))
    monkeypatch.setattr(lab_check, "LAB_STEPS", 12)
    for _ in range(2):
        check = LabCheck.of(Setup(300, 2), Ledger(tmp_path / "runs.jsonl"), 8.0)
        assert len(list(check.run())) == 2
    assert ran == ["int8", "auto"]
    first, second = check.rows()
    assert (first["level"], len(first["deviation"])) == ("int8", 2)
    assert (second["level"], len(second["deviation"])) == ("auto", 1)
