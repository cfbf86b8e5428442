"""Summary: the records of a benchmark as one result: cells, fixed levels at equal steps, and the totals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from harness.progress.cells import AUTO, AUTO_LOCAL, PLAIN, TRADE, Lineup, cell_of, changes_of, shares_of
from harness.progress.curves import Curve, Losses, noise_of
from harness.progress.ledger import Ledger
from harness.progress.networks import is_steady

# What is asked of auto: its speed against the best fixed level, on changing networks, and against peers.
AT_LEAST: Final = 0.95
CHANGING: Final = 1.0
PEERS: Final = 1.0
# A level keeps the accuracy that ends, at equal steps, within so many nats, or points of accuracy, of plain DDP.
NATS: Final = 0.02
POINTS: Final = 0.3

Place = tuple[str, str]  # task, network


@dataclass(frozen=True, slots=True)
class Contestants:
    """Fixed levels and torch's hooks, whose curves are composed, and controllers, which run whole."""

    fixed: Sequence[str]
    hooks: Sequence[str]
    adaptive: Sequence[str]
    # With a fixed number of local steps: composed too.
    local: Sequence[str] = ()

    @property
    def composed(self) -> list[str]:
        return [*self.fixed, *self.hooks, *self.local]

    @property
    def peers(self) -> list[str]:
        return [PLAIN, *self.hooks, *(name for name in self.adaptive if name not in (AUTO, TRADE, AUTO_LOCAL))]


@dataclass(slots=True)
class Collected:
    """Records by what they are of: trained by (task, level, seed), timed by those and the network, whole runs by
    (task, network, contestant, seed)."""

    trained: dict[tuple[str, str, int], dict[str, Any]] = field(default_factory=dict)
    timed: dict[tuple[str, str, str, int], dict[str, Any]] = field(default_factory=dict)
    whole: dict[tuple[str, str, str, int], dict[str, Any]] = field(default_factory=dict)
    checks: dict[tuple[str, str, str, int], dict[str, Any]] = field(default_factory=dict)
    _noise: dict[tuple[str, int], Losses] = field(default_factory=dict)

    def fixed_curve(self, task: str, network: str, level: str, seed: int) -> Curve | None:
        trained, timed = self.trained.get((task, level, seed)), self.timed.get((task, network, level, seed))
        if trained is None or timed is None:
            return None
        return Curve.of(timed["seconds"], trained["losses"], self.noise(task, seed))

    def whole_curve(self, task: str, network: str, name: str, seed: int) -> Curve | None:
        found = self.whole.get((task, network, name, seed))
        return None if found is None else Curve.of(found["seconds"], found["losses"], self.noise(task, seed))

    def noise(self, task: str, seed: int) -> Losses | None:
        """Of the seed's batches; None until plain DDP has been trained."""
        plain = self.trained.get((task, PLAIN, seed))
        if plain is None:
            return None
        if (task, seed) not in self._noise:
            self._noise[task, seed] = noise_of(plain["losses"])
        return self._noise[task, seed]

    def curves(self, place: Place, seeds: Sequence[int], who: Contestants) -> dict[int, dict[str, Curve]]:
        """By seed: the contestants that have been run there, auto and plain DDP among them. Further seeds count when
        they have all fixed levels of the first one; peers may have been run with fewer seeds."""
        result: dict[int, dict[str, Curve]] = {}
        for seed in seeds:
            found = {name: self.fixed_curve(*place, name, seed) for name in who.composed}
            found |= {name: self.whole_curve(*place, name, seed) for name in who.adaptive}
            ran = {name: one for name, one in found.items() if one is not None}
            first = next(iter(result.values()), ran)
            needed = {AUTO, PLAIN, *(name for name in who.fixed if name in first)}
            if needed <= ran.keys():
                result[seed] = {name: one for name, one in ran.items() if name in first}
        return result


def summarise(records: Collected, places: Sequence[Place], seeds: Sequence[int], who: Contestants) -> dict[str, Any]:
    cells, missing = [], []
    levels = fixed_levels(records, who.composed)
    for task, network in places:
        curves = records.curves((task, network), seeds, who)
        if not curves:
            missing.append(f"{task} on {network}")
            continue
        ran = next(iter(curves.values()))
        fixed = [name for name in who.fixed if name in ran]
        local = [name for name in (*who.local, AUTO_LOCAL) if name in ran]
        lineup = Lineup(fixed, keeping(levels, task, fixed), [name for name in who.peers if name in ran], local)
        cell = cell_of(list(curves.values()), lineup)
        own = {name: _controller(records, (task, network), name, curves) for name in who.adaptive if name in ran}
        cells.append({"task": task, "network": network, "seeds": list(curves), **cell, "controllers": own})
    return {
        "cells": cells, "missing": missing, "fixed": levels, "totals": totals(cells, levels),
        "composition": composition(records),
    }  # fmt: skip


def _controller(
    records: Collected, place: Place, name: str, curves: Mapping[int, Mapping[str, Curve]]
) -> dict[str, Any]:
    """What a controller did in a cell, seed by seed."""
    runs = {seed: records.whole[*place, name, seed] for seed in curves if name in curves[seed]}
    return {
        "changes": [changes_of(one["levels"]) for one in runs.values()],
        "levels": [shares_of(one["levels"]) for one in runs.values()],
        "guarded": [one["guarded"] for one in runs.values()],
        "ruined": sum(curves[seed][name].ruined for seed in runs),
        "equal_steps": [_equal_steps(one, records.trained[place[0], PLAIN, seed]) for seed, one in runs.items()],
    }


def keeps_accuracy(ends: Sequence[Mapping[str, Any]]) -> bool:
    """Whether runs end, on average over seeds, within NATS or POINTS of plain DDP after the same steps."""
    gap = statistics.fmean(_worst(one["difference"]) for one in ends)
    return gap <= NATS or (math.isfinite(gap) and statistics.fmean(one["points"] for one in ends) >= -POINTS)


def keeping(levels: Sequence[Mapping[str, Any]], task: str, fixed: Sequence[str]) -> list[str]:
    """The fixed levels that keep the accuracy of this task; plain DDP does by definition."""
    return [row["level"] for row in levels if (row["task"], row["keeps"]) == (task, True) and row["level"] in fixed]


def _equal_steps(run: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    """Held-out loss, its difference to plain DDP's after the same steps, and that of the accuracy in points."""
    return {
        "held_out": _finite(run["held_out"]),
        "difference": _finite(run["held_out"] - plain["held_out"]),
        "points": round(100 * (run["accuracy"] - plain["accuracy"]), 3),
    }


def fixed_levels(records: Collected, composed: Sequence[str]) -> list[dict[str, Any]]:
    """Every fixed level and hook of every task at equal steps: means over the seeds."""
    rows = []
    for task in dict.fromkeys(task for task, _, _ in records.trained):
        for level in composed:
            own = {seed: one for (t, name, seed), one in records.trained.items() if (t, name) == (task, level)}
            if not own:
                continue
            curves = [
                Curve.of(range(1, len(one["losses"]) + 1), one["losses"], records.noise(task, seed))
                for seed, one in own.items()
            ]
            plain = {seed: records.trained[task, PLAIN, seed] for seed in own}
            ends = [_equal_steps(one, plain[seed]) for seed, one in own.items()]
            rows.append({
                "task": task, "level": level, "seeds": len(own), "first": [round(one.first, 4) for one in curves],
                "loss": [_finite(one.losses[-1]) for one in curves],
                "held_out": [_finite(one["held_out"]) for one in own.values()],
                "accuracy": [round(one["accuracy"], 4) for one in own.values()],
                "ruined": sum(one.ruined for one in curves), "keeps": keeps_accuracy(ends),
            })  # fmt: skip
    return rows


def totals(cells: Sequence[Mapping[str, Any]], levels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How many of the (cell, target) pairs satisfy what is asked, and which do not."""
    pairs = [(cell, row) for cell in cells for row in cell["targets"]]
    names = list(dict.fromkeys(name for cell in cells for name in cell["controllers"]))
    compressing = [
        cell["controllers"][AUTO]
        for cell in cells
        if any(share.get(PLAIN, 0) < 1 for share in cell["controllers"][AUTO]["levels"])
    ]
    comparisons = {name: _counted(pairs, name, AT_LEAST, CHANGING) for name in ("keeping", "best", "trade")}
    against = {name: _against(pairs, name) for name in ("peers", "trade_peers")}
    return {
        "pairs": len(pairs), **comparisons, **against,
        "compressing": len(compressing),
        "equal_steps": sum(keeps_accuracy(own["equal_steps"]) for own in compressing),
        "runs": {name: sum(len(own["changes"]) for own in _of(cells, name)) for name in names},
        "ruined": {name: sum(own["ruined"] for own in _of(cells, name)) for name in names},
        "ruined_fixed": sum(row["ruined"] for row in levels),
        "runs_fixed": sum(row["seeds"] for row in levels),
        "most_changes_steady": max(
            (max(cell["controllers"][AUTO]["changes"]) for cell in cells if is_steady(cell["network"])), default=None
        ),
    }  # fmt: skip


def _of(cells: Sequence[Mapping[str, Any]], name: str) -> list[Mapping[str, Any]]:
    """What a controller did, in the cells where it was run."""
    return [cell["controllers"][name] for cell in cells if name in cell["controllers"]]


Pair = tuple[Mapping[str, Any], Mapping[str, Any]]  # a cell, and its row of one target


def _counted(pairs: Sequence[Pair], name: str, least: float, on_changing: float) -> dict[str, Any]:
    """One comparison with fixed levels: fast enough in how many pairs, undecided in how many, and where not."""
    own = [(cell, row, row[name]) for cell, row in pairs if name in row]
    changing = [speed for cell, _, speed in own if not is_steady(cell["network"])]
    return {
        "of": len(own),
        "reached": sum(verdict(speed, least) is True for _, _, speed in own),
        "undecided": sum(verdict(speed, least) is None for _, _, speed in own),
        "below": [_named(cell, row, speed) for cell, row, speed in own if verdict(speed, least) is False],
        "changing": len(changing),
        "changing_reached": sum(verdict(speed, on_changing) is True for speed in changing),
    }


def _against(pairs: Sequence[Pair], name: str) -> dict[str, Any]:
    """The comparisons with every peer."""
    own = [(cell, row, speed) for cell, row in pairs for speed in row.get(name, ())]
    return {
        "of": len(own),
        "reached": sum(verdict(speed, PEERS) is True for _, _, speed in own),
        "undecided": sum(verdict(speed, PEERS) is None for _, _, speed in own),
        "below": [_named(cell, row, speed) for cell, row, speed in own if verdict(speed, PEERS) is False],
    }


def verdict(speed: Mapping[str, Any], least: float) -> bool | None:
    """Whether auto was fast enough; None where neither got there, or the other did not and took its steps in less."""
    if speed["speed"] is None:
        return None
    if speed["failed"]:
        return False
    return True if speed["speed"] >= least else None if speed["behind"] else False


def _named(cell: Mapping[str, Any], row: Mapping[str, Any], speed: Mapping[str, Any]) -> str:
    return (
        f"{cell['task']} on {cell['network']}, {row['share']:g} of the steps: {speed['speed']:.3f} of {speed['other']}"
    )


def composition(records: Collected) -> list[dict[str, Any]]:
    """Whole runs of fixed levels against what was composed: seconds of the run, and the last loss of the trend."""
    rows = []
    for (task, network, level, seed), one in records.checks.items():
        composed = records.fixed_curve(task, network, level, seed)
        if composed is None:
            continue
        ran = Curve.of(one["seconds"], one["losses"], records.noise(task, seed))
        rows.append({
            "task": task, "network": network, "level": level, "seed": seed, "seconds": [ran.end, composed.end],
            "deviation": round(composed.end / ran.end - 1, 4),
            "losses": [_finite(ran.losses[-1]), _finite(composed.losses[-1])],
        })  # fmt: skip
    return rows


def of_other_code(ledger: Ledger) -> list[dict[str, Any]]:
    """The runs used that other code made: how many of each contestant and task, and by which revisions."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for one in ledger.other_code.values():
        settings = one["settings"]
        group = settings["kind"], settings.get("level", ""), settings.get("task", "")
        groups.setdefault(group, []).append(one)
    return [
        {
            "kind": kind, "level": level, "task": task, "runs": len(runs),
            "networks": sorted({run["settings"].get("network", "") for run in runs} - {""}),
            "made": sorted({" of ".join(run.get("made", ["unknown"])) for run in runs}),
        }
        for (kind, level, task), runs in sorted(groups.items())
    ]  # fmt: skip


def _finite(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


def _worst(value: float | None) -> float:
    return math.inf if value is None else value
