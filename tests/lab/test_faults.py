"""Faults in the middle of training, on real networks: it goes on with equal replicas, or every rank says why, in time.

The cases are those of benchmarks/faults.py that take seconds, on one host fewer; docs/results/faults.md has them all.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from faults import QUICK, limit, schedule
from gradwire.network import preset
from harness.fault_run import Outcome, run
from tests.trials import Trial, decide

HOSTS = 3


def run_case(trial: Trial, name: str, folder: Path) -> Outcome:
    case = next(case for case in schedule(folder) if case.name == name)
    outcome = run(replace(case, network=preset("lan100", HOSTS)), limit(case))
    if "COULD NOT KEEP UP" in outcome.lab:
        trial.excuse(outcome.lab)
    return outcome


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", [name for name in QUICK if "firewall" not in name])
def test_a_fault_has_the_promised_outcome(name: str, tmp_path: Path) -> None:
    def measure(trial: Trial) -> None:
        outcome = run_case(trial, name, tmp_path)
        # Neither takes longer on a busy machine: no trial may break them.
        if not outcome.same or outcome.left:
            pytest.fail(f"replicas differ, or something was left behind: {outcome}")
        assert outcome.verdict == "as promised", outcome

    decide(measure)


@pytest.mark.timeout(500)
def test_behind_a_firewall_training_continues_and_only_measured_values_are_recorded(tmp_path: Path) -> None:
    def measure(trial: Trial) -> None:
        outcome = run_case(trial, "firewall drops UDP, ltp", tmp_path)
        assert outcome.good, outcome
        assert set(outcome.known) == {1, 2}
        assert all("rtt" in values for values in outcome.known.values()), "TCP's own acknowledgements still show it"
        # A job this small shows nothing of the rate; the startup probe may have, and then it is what two flows share.
        rates = [values.get("rate", 6e6) for values in outcome.known.values()]
        assert all(2.5e6 < rate < 14e6 for rate in rates), rates

    decide(measure)


def test_every_quick_case_is_in_the_schedule(tmp_path: Path) -> None:
    assert set(QUICK) <= {case.name for case in schedule(tmp_path)}
