"""Trials: when a claim about real time holds, fails or is inconclusive, and how inconclusive ones are reported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from gradwire.lab import EmulatorStats
from gradwire.lab.machine_load import MachineUse, disturbance
from tests.lab.test_stats import stats
from tests.trials import FAILURES, PAUSES, Trial, decide

QUIET, BUSY = 0.0, 1e6  # cores used by other programs


def machine(others: float = QUIET) -> Callable[[], MachineUse]:
    """A second passes between two calls, and other programs use this many cores."""
    looks = iter(range(1000))

    def look() -> MachineUse:
        second = next(looks)
        return MachineUse(at=second, busy=second * others, stolen=0.0, own=0.0)

    return look


class Claim:
    """Holds or fails according to a list, in labs with these statistics."""

    def __init__(self, outcomes: Iterable[bool], lab: EmulatorStats | None = None) -> None:
        self._outcomes, self._lab = iter(outcomes), lab
        self.trials = 0

    def __call__(self, trial: Trial) -> None:
        self.trials += 1
        if self._lab is not None:
            trial.saw(self._lab)
        assert next(self._outcomes)


LATE = stats(lateness=[9000, 700, 300, 0])
A_FEW_LATE = stats(lateness=[10, 0, 10, 0])


def test_a_trial_that_holds_decides() -> None:
    claim = Claim([True], stats())
    decide(claim, machine(), pytest.fail)
    assert claim.trials == 1


def test_a_claim_that_fails_on_a_quiet_machine_fails() -> None:
    claim = Claim([False] * 9, stats())
    with pytest.raises(AssertionError):
        decide(claim, machine(), pytest.fail)
    assert claim.trials == FAILURES


def test_a_claim_that_fails_beside_other_programs_is_tried_again_after_growing_pauses_and_then_skipped() -> None:
    claim, pauses = Claim([False] * 9, stats()), list[float]()
    with pytest.raises(pytest.skip.Exception, match=r"inconclusive: other programs used .* of \d+ cores"):
        decide(claim, machine(BUSY), pauses.append)
    assert pauses == list(PAUSES)
    assert claim.trials == len(PAUSES) + 1


def test_a_claim_that_holds_beside_other_programs_is_decided() -> None:
    claim = Claim([False, True], stats())
    decide(claim, machine(BUSY), lambda seconds: None)
    assert claim.trials == 2


@pytest.mark.parametrize("holds", [True, False])
def test_a_lab_that_could_not_keep_up_decides_nothing(holds: bool) -> None:
    with pytest.raises(pytest.skip.Exception, match=r"inconclusive: 3.0% of the packets left more than 1 ms late"):
        decide(Claim([holds] * 9, LATE), machine(), lambda seconds: None)


def test_a_few_late_packets_of_a_short_measurement_excuse_its_failure_only() -> None:
    decide(Claim([True], A_FEW_LATE), machine(), pytest.fail)
    with pytest.raises(pytest.skip.Exception, match=r"50% of the lab's packets were late by up to 1\.2 ms"):
        decide(Claim([False] * 9, A_FEW_LATE), machine(), lambda seconds: None)


def test_the_use_of_this_process_and_its_children_does_not_count_as_other_programs() -> None:
    """A busy loop of this process must not count; the machine may run other programs too."""
    before = MachineUse.now()
    subprocess.run([sys.executable, "-c", "for _ in range(10_000_000): pass"], check=True, timeout=60)
    used = MachineUse.now()
    assert used.own - before.own > 0.1
    assert used.busy - before.busy >= used.own - before.own - 0.05


def test_use_above_a_tenth_of_the_cores_is_reported() -> None:
    assert disturbance(0.1, cores=2) == ""
    assert disturbance(0.5, cores=2) == "other programs used 0.50 of 2 cores"


TESTS = """
import pytest
def test_undecided(): pytest.skip("inconclusive: other programs used 1.9 of 2 cores (trial 4: 36 ms)")
def test_skipped(): pytest.skip("no netem")
"""


@pytest.mark.slow
def test_the_last_lines_of_a_run_name_the_inconclusive_claims(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_terminal_summary, pytest_unconfigure\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    collected = tmp_path / "undecided.txt"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "UNDECIDED_CLAIMS": str(collected)}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120, env=environment, cwd=tmp_path)
    wanted = "test_it.py::test_undecided: other programs used 1.9 of 2 cores (trial 4: 36 ms)"
    assert done.stdout.splitlines()[-1].endswith(wanted)
    assert done.stdout.splitlines()[-1].startswith("not decided: ")
    (line,) = collected.read_text().splitlines()
    assert line == done.stdout.splitlines()[-1]
