"""Summary: the records of a benchmark as one result: cells, fixed levels at equal steps, and the totals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from harness.progress.cells import AUTO, Curve, cell_of, changes_of, shares_of
from harness.progress.networks import STEADY

# What is asked of auto: its speed against the best fixed level, on changing networks, and against peers.
AT_LEAST: Final = 0.95
CHANGING: Final = 1.0
PEERS: Final = 1.0
PLAIN: Final = "off"

Place = tuple[str, str]  # task, network


@dataclass(slots=True)
class Collected:
    """Records by what they are of: trained by (task, level, seed), timed by those and the network, whole runs by
    (task, network, contestant, seed)."""

    steps: int
    trained: dict[tuple[str, str, int], dict[str, Any]] = field(default_factory=dict)
    timed: dict[tuple[str, str, str, int], dict[str, Any]] = field(default_factory=dict)
    whole: dict[tuple[str, str, str, int], dict[str, Any]] = field(default_factory=dict)
    checks: dict[tuple[str, str, str, int], dict[str, Any]] = field(default_factory=dict)

    def fixed_curve(self, task: str, network: str, level: str, seed: int) -> Curve | None:
        trained, timed = self.trained.get((task, level, seed)), self.timed.get((task, network, level, seed))
        return None if trained is None or timed is None else Curve.of(timed["seconds"], trained["losses"], self.steps)

    def whole_curve(self, task: str, network: str, name: str, seed: int) -> Curve | None:
        found = self.whole.get((task, network, name, seed))
        return None if found is None else Curve.of(found["seconds"], found["losses"], self.steps)

    def curves(
        self, place: Place, seeds: Sequence[int], fixed: Sequence[str], adaptive: Sequence[str]
    ) -> dict[int, dict[str, Curve]]:
        """By seed, for the seeds of which every contestant has been run."""
        result = {}
        for seed in seeds:
            found = {name: self.fixed_curve(*place, name, seed) for name in fixed}
            found |= {name: self.whole_curve(*place, name, seed) for name in adaptive}
            complete = {name: one for name, one in found.items() if one is not None}
            if len(complete) == len(found):
                result[seed] = complete
        return result


def summarise(
    records: Collected, places: Sequence[Place], seeds: Sequence[int], fixed: Sequence[str], adaptive: Sequence[str]
) -> dict[str, Any]:
    cells, missing = [], []
    for task, network in places:
        curves = records.curves((task, network), seeds, fixed, adaptive)
        if not curves:
            missing.append(f"{task} on {network}")
            continue
        peers = [PLAIN, *(name for name in adaptive if name != AUTO)]
        cell = cell_of(list(curves.values()), fixed, [name for name in peers if name in next(iter(curves.values()))])
        runs = {name: [records.whole[task, network, name, seed] for seed in curves] for name in adaptive}
        cells.append({
            "task": task, "network": network, "seeds": list(curves), **cell,
            "controllers": {
                name: {
                    "changes": [changes_of(one["levels"]) for one in own],
                    "levels": [shares_of(one["levels"]) for one in own],
                    "guarded": [one["guarded"] for one in own],
                    "ruined": sum(curves[seed][name].ruined for seed in curves),
                    "equal_steps": [_equal_steps(one, records.trained[task, PLAIN, seed])
                                    for seed, one in zip(curves, own, strict=True)],
                }
                for name, own in runs.items()
            },
        })  # fmt: skip
    levels = fixed_levels(records, fixed)
    return {
        "cells": cells, "missing": missing, "fixed": levels, "totals": totals(cells, levels),
        "composition": composition(records),
    }  # fmt: skip


def _equal_steps(run: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    """Held-out loss, its difference to plain DDP's after the same steps, and that of the accuracy in points."""
    return {
        "held_out": _finite(run["held_out"]),
        "difference": _finite(run["held_out"] - plain["held_out"]),
        "points": round(100 * (run["accuracy"] - plain["accuracy"]), 3),
    }


def fixed_levels(records: Collected, fixed: Sequence[str]) -> list[dict[str, Any]]:
    """Every fixed level of every task at equal steps: means over the seeds."""
    rows = []
    for task in dict.fromkeys(task for task, _, _ in records.trained):
        for level in fixed:
            own = {seed: one for (t, name, seed), one in records.trained.items() if (t, name) == (task, level)}
            if not own:
                continue
            curves = [Curve.of(range(1, len(one["losses"]) + 1), one["losses"], records.steps) for one in own.values()]
            rows.append({
                "task": task, "level": level, "seeds": len(own), "first": [round(one.first, 4) for one in curves],
                "loss": [_finite(one.losses[-1]) for one in curves],
                "held_out": [_finite(one["held_out"]) for one in own.values()],
                "accuracy": [round(one["accuracy"], 4) for one in own.values()],
                "ruined": sum(one.ruined for one in curves),
            })  # fmt: skip
    return rows


def totals(cells: Sequence[Mapping[str, Any]], levels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How many of the (cell, target) pairs satisfy what is asked, and which do not."""
    pairs = [(cell, row) for cell in cells for row in cell["targets"]]
    changing = [(cell, row) for cell, row in pairs if cell["network"] not in STEADY]
    against = [(cell, row, peer) for cell, row in pairs for peer in row["peers"]]
    names = list(cells[0]["controllers"]) if cells else []
    autos = [cell["controllers"][AUTO] for cell in cells]
    compressing = [own for own in autos if any(PLAIN not in share or share[PLAIN] < 1 for share in own["levels"])]
    gaps = [statistics.fmean(_worst(one["difference"]) for one in own["equal_steps"]) for own in compressing]
    return {
        "pairs": len(pairs),
        "reached": sum(verdict(row["best"], AT_LEAST) is True for _, row in pairs),
        "below": [_named(cell, row, row["best"]) for cell, row in pairs if verdict(row["best"], AT_LEAST) is False],
        "changing": len(changing),
        "changing_reached": sum(verdict(row["best"], CHANGING) is True for _, row in changing),
        "peers": len(against),
        "peers_reached": sum(verdict(peer, PEERS) is True for _, _, peer in against),
        "peers_below": [_named(cell, row, peer) for cell, row, peer in against if verdict(peer, PEERS) is False],
        "undecided": sum(verdict(row["best"], AT_LEAST) is None for _, row in pairs)
        + sum(verdict(peer, PEERS) is None for _, _, peer in against),
        "compressing": len(compressing),
        "equal_steps": sum(gap <= 0.02 for gap in gaps),
        "runs": {name: sum(len(cell["seeds"]) for cell in cells) for name in names},
        "ruined": {name: sum(cell["controllers"][name]["ruined"] for cell in cells) for name in names},
        "ruined_fixed": sum(row["ruined"] for row in levels),
        "runs_fixed": sum(row["seeds"] for row in levels),
        "most_changes_steady": max(
            (max(cell["controllers"][AUTO]["changes"]) for cell in cells if cell["network"] in STEADY), default=None
        ),
    }


def verdict(speed: Mapping[str, Any], least: float) -> bool | None:
    """Whether auto was fast enough; None where neither got there, or the other did not and took its steps in less."""
    if speed["speed"] is None:
        return None
    if speed["failed"]:
        return False
    return True if speed["speed"] >= least else None if speed["behind"] else False


def _named(cell: Mapping[str, Any], row: Mapping[str, Any], speed: Mapping[str, Any]) -> str:
    return f"{cell['task']} on {cell['network']}, {row['share']:g} of the run: {speed['speed']:.3f} of {speed['other']}"


def composition(records: Collected) -> list[dict[str, Any]]:
    """Whole runs of fixed levels against what was composed: seconds of the run, and the last smoothed loss."""
    rows = []
    for (task, network, level, seed), one in records.checks.items():
        composed = records.fixed_curve(task, network, level, seed)
        if composed is None:
            continue
        ran = Curve.of(one["seconds"], one["losses"], records.steps)
        rows.append({
            "task": task, "network": network, "level": level, "seed": seed, "seconds": [ran.end, composed.end],
            "deviation": round(composed.end / ran.end - 1, 4),
            "losses": [_finite(ran.losses[-1]), _finite(composed.losses[-1])],
        })  # fmt: skip
    return rows


def _finite(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


def _worst(value: float | None) -> float:
    return math.inf if value is None else value
