"""Claims about real time, on a machine that other programs use too.

A trial measures and asserts, and ends in one of three ways:
* held: its assertions are true, and every lab that it used kept up;
* failed: an assertion is false, although every lab was on time and no other program used the machine noticeably;
* inconclusive: a lab could not keep up, or an assertion failed while other programs used the machine.

One trial that holds decides a claim, and so do three that fail. An inconclusive one is repeated after growing pauses;
if it stays inconclusive, the test is skipped with what was measured, and named at the end of the run.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from gradwire.errors import LinkError
from gradwire.lab import EmulatorStats, Lab
from gradwire.lab.machine_load import MachineUse, disturbance
from gradwire.lab.stats import LATE_SHARE

FAILURES = 3
PAUSES = (1.0, 2.0, 4.0)
# No further trial begins after this: a test has 180 s, and a trial may take a minute.
BUDGET = 60.0
INCONCLUSIVE = "inconclusive: "
# Errors of a trial in which something took longer than it waited for.
LATE = (AssertionError, LinkError, subprocess.TimeoutExpired)


class Trial:
    """One measurement, with the statistics of its labs and of the machine."""

    def __init__(self, machine: Callable[[], MachineUse] = MachineUse.now) -> None:
        self._machine = machine
        self._before = machine()
        self._labs: list[EmulatorStats] = []
        self._excuses: list[str] = []

    @contextmanager
    def measures_in(self, lab: Lab) -> Iterator[None]:
        """Within this block the lab has to keep up."""
        before = lab.stats()
        try:
            yield
        finally:
            self.saw(lab.stats().since(before))

    def saw(self, stats: EmulatorStats) -> None:
        self._labs.append(stats)

    def excuse(self, reason: str) -> None:
        """Something else that makes a failure inconclusive."""
        self._excuses.append(reason)

    def doubts(self, failed: bool) -> list[str]:
        """Why the outcome is inconclusive. A few late packets or a busy machine only excuse a failure, they do not
        make a trial that held doubtful."""
        found = [problem for stats in self._labs for problem in stats.problems]
        if failed and not found:
            found += self._excuses
            found += [
                f"{stats.late_share:.0%} of the lab's packets were late by up to {stats.lateness_max_us / 1e3:.1f} ms"
                for stats in self._labs
                if stats.late_share > LATE_SHARE
            ]
            busy = disturbance(self._machine().others_since(self._before))
            found += [busy] if busy else []
        return found


def decide(
    measure: Callable[[Trial], None],
    machine: Callable[[], MachineUse] = MachineUse.now,
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """Repeat trials until the claim is decided: returns, raises what the trial raised, or skips the test."""
    failures, inconclusive = 0, 0
    begun = time.monotonic()
    while True:
        trial = Trial(machine)
        failure: Exception | None = None
        try:
            measure(trial)
        except LATE as error:
            failure = error
        doubts = trial.doubts(failure is not None)
        if failure is None and not doubts:
            return
        over = time.monotonic() > begun + BUDGET
        if doubts:
            inconclusive += 1
            if over or inconclusive > len(PAUSES):
                pytest.skip(f"{INCONCLUSIVE}{'; '.join(doubts)} (trial {failures + inconclusive}: {_short(failure)})")
            pause(PAUSES[inconclusive - 1])
        elif failure is not None:
            failures += 1
            if over or failures >= FAILURES:
                raise failure


def _short(failure: Exception | None) -> str:
    return "it held" if failure is None else " ".join(str(failure).split())[:200]
