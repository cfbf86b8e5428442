"""Lab check: cells of the benchmark run whole in the lab, beside the same runs in virtual time and their composition.

In: what all runs have in common, and the ledger. Out: rows that say how far virtual time is from the lab.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from harness.progress.cells import AUTO
from harness.progress.fingerprint import CONTROL, code_of, torch_of
from harness.progress.lab_runs import compared, run_in_lab
from harness.progress.ledger import Ledger
from harness.progress.pool import perform
from harness.progress.runs import Setup, Work, timing

# Task, network and contestants: a slow, a distant and a lossy network.
LAB_CELLS: Final = (
    ("mlp", "20mbit", ("int8", "topk:0.1+int8", AUTO)),
    ("mlp", "wan-us-eu", ("int4", "topk:0.01+int8", AUTO)),
    ("cnn-0.05", "lossy-wifi", ("int8", "int4", AUTO)),
)
# Enough for the startup probe, the dense steps and the first decisions; a minute or two of this machine each.
LAB_STEPS: Final = 60
SEED: Final = 1
# What a run in the lab depends on beside what virtual time depends on.
REAL: Final = (*CONTROL, "runtime", "integrations", "transport")

Run = tuple[str, str, str]  # task, network, contestant


@dataclass(frozen=True, slots=True)
class LabCheck:
    """`dilate` is the factor of the first attempt."""

    setup: Setup
    ledger: Ledger
    dilate: float

    @classmethod
    def of(cls, setup: Setup, ledger: Ledger, dilate: float) -> LabCheck:
        return cls(replace(setup, steps=LAB_STEPS), ledger, dilate)

    @property
    def runs(self) -> list[Run]:
        return [(task, network, name) for task, network, names in LAB_CELLS for name in names]

    def run(self) -> Iterator[Run]:
        """Everything that the ledger does not have; each run when all of it is there."""
        for one in self.runs:
            list(perform(self._virtual(one), self.ledger))
            if self._trained(one):
                list(perform([self._timing(one)], self.ledger))
            if self._lab(one) is None:
                self.ledger.add(self._settings(one), self._code, run_in_lab(self.setup, self._settings(one)))
            yield one

    def rows(self) -> list[dict[str, Any]]:
        """Of the runs that are complete."""
        rows = []
        for task, network, name in self.runs:
            lab, virtual = self._lab((task, network, name)), self._whole((task, network, name))
            if lab is not None and virtual is not None:
                row = compared(lab, virtual, self._composed((task, network, name)))
                rows.append({"task": task, "network": network, "level": name, **row})
        return rows

    def _virtual(self, one: Run) -> list[Work]:
        task, network, name = one
        whole = self.setup.settings("whole", task=task, network=network, level=name, seed=SEED)
        train = self.setup.settings("train", task=task, level=name, seed=SEED)
        return [Work(settings, self.setup) for settings in ([whole] if name == AUTO else [whole, train])]

    def _whole(self, one: Run) -> dict[str, Any] | None:
        whole = self._virtual(one)[0]
        return self.ledger.get(whole.settings, whole.code)

    def _trained(self, one: Run) -> dict[str, Any] | None:
        found = [self.ledger.get(work.settings, work.code) for work in self._virtual(one)[1:]]
        return found[0] if found else None

    def _timing(self, one: Run) -> Work:
        trained = self._trained(one)
        assert trained is not None
        return timing(self.setup, one[0], one[1], SEED, trained)

    def _composed(self, one: Run) -> list[float] | None:
        if self._trained(one) is None:
            return None
        work = self._timing(one)
        timed = self.ledger.get(work.settings, work.code)
        return None if timed is None else timed["seconds"]

    def _settings(self, one: Run) -> dict[str, Any]:
        task, network, name = one
        return self.setup.settings("lab", task=task, network=network, level=name, seed=SEED, dilate=self.dilate)

    @property
    def _code(self) -> str:
        return code_of(REAL) + code_of(("tasks.py", "networks.py", "lab_worker.py"), Path(__file__).parent) + torch_of()

    def _lab(self, one: Run) -> dict[str, Any] | None:
        return self.ledger.get(self._settings(one), self._code)
