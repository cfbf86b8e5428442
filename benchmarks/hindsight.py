"""Hindsight: `auto` against the fixed levels of its ladder, over a grid of bandwidths and round trips.

    python benchmarks/hindsight.py [--cells 50x1,200x20] [--out DIR]

A level is left out of a cell where sending its bytes alone would take `HOPELESS` times the whole step of the best one:
it cannot win, and at 50 Mbit/s it takes minutes. With --out the cells are added to those of earlier runs. The
verdict is by time to accuracy: time per step x the factor on the number of steps that the ladder states for a level
(measured: docs/results/accuracy.md); for `auto` the mean factor of the levels its measured steps ran at.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from gradwire.decide.ladder import LADDER, Rung
from gradwire.errors import GradwireError
from gradwire.exchange.select import FootprintTable
from gradwire.network import Network, parse_network
from gradwire.types import Bucket, ParameterSlice
from gradwire.units import Rate
from harness.case import Case, measure, options_of
from harness.result import Row, as_json, table
from harness.workload import WorkloadSpec

HOSTS = 4
WORKLOAD = "paced:resnet18"
RATES, TRIPS = (50, 100, 200, 500, 800, 1000), (1, 20, 100)
HOPELESS = 2.5
CASE = Case("hindsight", WORKLOAD, (), HOSTS, (), "auto against the best fixed level in hindsight", repeat=2, seconds=2)


def cell(mbit: int, trip_ms: float) -> Network:
    """Hosts on one switch; a queue of 50 ms, as home and office routers have."""
    queue = max(64_000, int(mbit * 1e6 / 8 * 0.05))
    text = f'hosts = {HOSTS}\n[access]\nrate = "{mbit}mbit"\ndelay = "{trip_ms / 4}ms"\nqueue = "{queue}"\n'
    return parse_network(text, f"{mbit}mbit-{trip_ms:g}ms")


def candidates(mbit: int) -> list[Rung]:
    """Levels that can be the best at this rate, by their bytes."""
    work = WorkloadSpec.parse(WORKLOAD)
    shape = (512, work.numel // 512)
    bucket = Bucket(0, 0, work.numel, 4, (ParameterSlice("all", 0, shape, shape[0] * shape[1]),), True)
    rate, sizes = float(Rate.from_mbit(mbit)), FootprintTable(HOSTS)
    times = {rung: sizes(rung.level, bucket).wire_bytes / rate for rung in LADDER}
    best = max(work.seconds, min(times.values()))
    return [rung for rung, seconds in times.items() if seconds <= HOPELESS * best]


def name_of(rung: Rung) -> str:
    return "ddp" if rung.level.off else f"gradwire:{rung.level}"


def verdict(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line per cell: the best fixed level by time to accuracy, and its ratio to `auto`."""
    result = []
    for network in dict.fromkeys(row["network"] for row in rows):
        here = [row for row in rows if row["network"] == network and not row["error"]]
        costs = {row["contestant"]: row["median"] * factor(row) for row in here}
        auto = costs.pop("gradwire:auto", None)
        if auto is None or not costs:
            continue
        best = min(costs, key=costs.__getitem__)
        steps = {row["contestant"]: row["median"] for row in here}
        (ours,) = (row for row in here if row["contestant"] == "gradwire:auto")
        result.append({
            "network": network, "best": best, "best_ms": 1e3 * steps[best], "auto_ms": 1e3 * ours["median"],
            "ratio": costs[best] / auto, "levels": ours.get("levels", {}),
        })  # fmt: skip
    return result


def factor(row: dict[str, Any]) -> float:
    """Factor on the number of steps to the same accuracy, by the levels that ran."""
    slowdowns = {str(rung.level): rung.slowdown for rung in LADDER}
    fixed = row["contestant"].removeprefix("gradwire:")
    levels = row.get("levels") or {fixed: 1}
    return sum(count * slowdowns.get(level, 1.0) for level, count in levels.items()) / sum(levels.values())


def write(folder: Path, result: dict[str, Any]) -> None:
    """Add the cells to those in the file, and write the page again."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "hindsight.json"
    fresh = {row["network"] for row in result["rows"]}
    kept = [row for row in json.loads(path.read_text())["rows"] if row["network"] not in fresh] if path.exists() else []
    result["rows"] = kept + result["rows"]
    path.write_text(json.dumps(result, indent=1) + "\n")
    machine, lines = result["machine"], verdict(result["rows"])
    reached = sum(line["ratio"] >= 0.95 for line in lines)
    page = [
        f"# {CASE.title}", "", "    python benchmarks/hindsight.py --out docs/results", "",
        f"{result['workloads'][0]['about']}; {HOSTS} hosts. gradwire {machine['revision']}, torch {machine['torch']}, "
        f"{machine['cores']} cores (cells of earlier runs are kept: the revision is the last one's). "
        f"Rungs whose bytes alone take {HOPELESS} times the best step are left out.",
        "", f"By time to accuracy `auto` reaches 0.95 of the best fixed level in {reached} of {len(lines)} cells.", "",
        "| network | best fixed level | its step | auto's step | auto's levels | best / auto, time to accuracy |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    page += [
        f"| {one['network']} | {one['best']} | {one['best_ms']:.0f} ms | {one['auto_ms']:.0f} ms "
        f"| {', '.join(one['levels'])} | {one['ratio']:.2f} |"
        for one in lines
    ]
    page += ["", "All rows:", "", "| network | contestant | step (p10..p90) | bytes a rank |", "|---|---|---|---|"]
    page += [
        f"| {row['network']} | {row['contestant']} | {1e3 * row['median']:.0f} ms ({1e3 * row['p10']:.0f}.."
        f"{1e3 * row['p90']:.0f}) | {row['payload'] / 1e6:.2f} MB |"
        for row in result["rows"]
    ]
    (folder / "hindsight.md").write_text("\n".join(page) + "\n")


def main() -> None:
    cells = [f"{rate}x{trip}" for rate in RATES for trip in TRIPS]
    arguments = sys.argv[1:]
    if "--cells" in arguments:
        place = arguments.index("--cells")
        cells = arguments[place + 1].split(",")
        arguments = arguments[:place] + arguments[place + 2 :]
    options, console = options_of(CASE, arguments), Console(stderr=True)
    rows: list[Row] = []
    result: dict[str, Any] = {}
    for text in cells:
        mbit, trip = (int(word) for word in text.split("x"))
        options.contestants = ",".join([*map(name_of, candidates(mbit)), "gradwire:auto"])
        try:
            result = measure(replace(CASE, networks=(cell(mbit, trip),)), options, console)
        except GradwireError as error:
            sys.exit(f"{CASE.name}: {error}")
        rows += result["rows"]
        if options.out:
            write(options.out, {**result, "rows": [as_json(row) for row in result["rows"]]})
    Console(width=150).print(table(CASE.title, rows))
    for line in verdict([as_json(row) for row in rows]):
        print(json.dumps(line))


if __name__ == "__main__":
    main()
