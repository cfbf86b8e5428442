"""Whole runs in the lab: real ranks, kernel TCP and dilated time, to check virtual time and the composition.

In: a task, a network, a contestant. Out: a record of the run; and, of runs in virtual time with the same settings, how
far seconds per step and losses are apart. A run in which the lab or the ranks' compute did not keep up is done again at
twice the dilation, once; the record says what was used and whether it then kept up.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from gradwire.decide.auto import EXTRA_STEPS
from gradwire.errors import LinkError
from gradwire.lab import Lab
from harness.progress.cells import AUTO, TRADE
from harness.progress.lab_worker import MARK, LabSpec
from harness.progress.networks import network_of
from harness.progress.runs import TRADED_STEPS, Setup
from harness.progress.tasks import task_of

# The first steps connect, rebuild buckets and start slowly.
WARM: Final = 5
# Steps of a trailing mean of losses.
WINDOW: Final = 10
KEPT_UP: Final = "the lab kept up"
# Steps whose compute was late, as a share of all, above which a run is repeated.
LATE_SHARE: Final = 0.1
# Undilated seconds for a run: starting Python, and at most this long for a step.
START_SECONDS: Final = 60.0
STEP_SECONDS: Final = 8.0


def run_in_lab(setup: Setup, settings: Mapping[str, Any]) -> dict[str, Any]:
    """At the settings' dilation, and if it did not keep up at twice that."""
    first = _once(setup, settings, settings["dilate"])
    if first["kept_up"]:
        return first
    return _once(setup, settings, 2 * settings["dilate"]) | {"first": first["verdict"]}


def _once(setup: Setup, settings: Mapping[str, Any], dilate: float) -> dict[str, Any]:
    task = task_of(settings["task"], setup.steps, setup.directory)
    network = network_of(settings["network"], setup.hosts, setup.steps * task.compute, setup.directory)
    level, extra = (AUTO, TRADED_STEPS) if settings["level"] == TRADE else (settings["level"], EXTRA_STEPS)
    directory = str(setup.directory) if setup.directory else None
    spec = LabSpec(settings["task"], level, settings["seed"], setup.steps, extra, directory)
    with tempfile.TemporaryDirectory() as folder, Lab(network, dilate=dilate) as lab:
        path = Path(folder) / "spec.json"
        spec.write(path)
        result = lab.run(
            [sys.executable, "-m", "harness.progress.lab_worker", str(path)],
            env={"PYTHONPATH": str(Path(__file__).parents[2]), "TORCH_CPP_LOG_LEVEL": "ERROR", "OMP_NUM_THREADS": "1"},
            timeout=START_SECONDS + STEP_SECONDS * setup.steps,
        )
    outputs = [host.output for host in result.hosts]
    if result.code != 0:
        raise LinkError(f"progress: the lab's ranks failed with code {result.code}: {outputs[0][-500:]}")
    return merged(outputs) | verdict_of(result.stats.verdict, dilate, outputs, setup.steps)


def merged(outputs: Sequence[str]) -> dict[str, Any]:
    """One record of all ranks' lines: mean losses, the last rank's times, rank 0's decisions."""
    found = sorted((_line(one) for one in outputs), key=lambda one: one["rank"])
    return {
        "losses": [round(statistics.fmean(step), 5) for step in zip(*(one["losses"] for one in found), strict=True)],
        "seconds": [round(max(step), 5) for step in zip(*(one["seconds"] for one in found), strict=True)],
        "decided": found[0]["decided"],
    }


def verdict_of(verdict: str, dilate: float, outputs: Sequence[str], steps: int) -> dict[str, Any]:
    late = max(_line(one)["late"] for one in outputs) / steps
    kept_up = verdict == KEPT_UP and late <= LATE_SHARE
    return {
        "dilate": dilate, "verdict": verdict, "late_compute": round(late, 3), "kept_up": kept_up,
        "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def _line(output: str) -> dict[str, Any]:
    lines = [line for line in output.splitlines() if line.startswith(MARK)]
    if not lines:
        raise LinkError(f"progress: a rank of the lab reported nothing: {output[-500:]}")
    found: dict[str, Any] = json.JSONDecoder().raw_decode(lines[-1].removeprefix(MARK))[0]
    return found


def compared(lab: Mapping[str, Any], virtual: Mapping[str, Any], composed: Sequence[float] | None) -> dict[str, Any]:
    """Seconds per step in the lab, in virtual time and composed; deviations of both to the lab's; and the greatest
    distance of the smoothed losses."""
    steps = [per_step(one) for one in (lab["seconds"], virtual["seconds"], composed) if one is not None]
    real, *models = steps
    pairs = zip(trailing_means(lab["losses"]), trailing_means(virtual["losses"]), strict=False)
    return {
        "steps": len(lab["losses"]), "seconds_per_step": [round(one, 4) for one in steps],
        "deviation": [round(one / real - 1, 4) for one in models],
        "loss_distance": round(max(abs(a - b) for a, b in pairs), 4),
        "last_losses": [round(statistics.fmean(one["losses"][-WINDOW:]), 4) for one in (lab, virtual)],
        **{name: lab[name] for name in ("dilate", "verdict", "late_compute", "kept_up", "load", "decided")},
        "virtual_levels": virtual["levels"],
    }  # fmt: skip


def trailing_means(losses: Sequence[float]) -> list[float]:
    """Of WINDOW steps each."""
    return [statistics.fmean(losses[end - WINDOW : end]) for end in range(WINDOW, len(losses) + 1)]


def per_step(seconds: Sequence[float]) -> float:
    """The mean time of a step, without the first ones."""
    return statistics.fmean(after - before for before, after in pairwise(seconds[WARM - 1 :]))
