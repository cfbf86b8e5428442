"""NetSenseML's changing settings: 8 workers while bandwidth falls, and while competing flows come and go.

    python benchmarks/netsense_changing.py [--nets degrading,fluctuating] [--lasting 60] [--out DIR]

Each contestant has a fresh lab and trains for the same time; steps are counted from the first on, so the time that a
controller needs to adapt counts too. `degrading` falls from 800 Mbit/s over 500, 200 and 100 to 50, a step every 6 s,
and starts again; `fluctuating` is an 800 Mbit/s trunk beside which 1 to 50 CUBIC streams come and go every 6 s. (The
papers' intervals are longer; here a run must contain several of them.)
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gradwire.errors import GradwireError
from gradwire.network import Change, CrossTraffic, Network, load_network
from gradwire.units import Rate, Seconds
from harness import facts
from harness.job import Block, Job
from harness.result import mean_over_ranks
from harness.run import run
from harness.workload import WorkloadSpec

HOSTS = 8
EVERY = 6.0
CONTESTANTS = ("ddp", "topk-0.1", "gradwire:netsense@25", "gradwire:auto@25")
FALLING = (800, 500, 200, 100, 50)
STREAMS = (1, 10, 50, 5, 25, 2)


def network(name: str, seconds: float) -> Network:
    """The named network, with changes for at least so many seconds."""
    turns = range(int(seconds / EVERY) + 1)
    base = load_network(name, HOSTS)
    if name == "degrading":
        rates = [Rate.from_mbit(FALLING[turn % len(FALLING)]) for turn in turns]
        return replace(base, changes=tuple(Change(Seconds(EVERY * i), "*", rate) for i, rate in enumerate(rates)))
    flows = [STREAMS[turn % len(STREAMS)] for turn in turns]
    ends = [("x0", "x1") if turn % 2 == 0 else ("x1", "x0") for turn in turns]
    cross = [
        CrossTraffic(*ends[i], Seconds(EVERY * i), Seconds(EVERY * (i + 1)), flows[i], "cubic") for i in turns
    ]  # fmt: skip
    return replace(base, cross=tuple(cross))


def measure(name: str, workload: WorkloadSpec, lasting: float, note: Console) -> list[dict[str, Any]]:
    rows = []
    for contestant in CONTESTANTS:
        job = Job(workload, (Block(contestant, 0),), timeout=lasting + 60, lasting=lasting)
        (report,) = run(network(name, lasting + 60), job, lambda text: note.print(f"[dim]{text}[/dim]"))
        if report.error:
            rows.append({"network": name, "contestant": contestant, "error": report.error})
            continue
        steps = mean_over_ranks(report)
        late = report.stats.late_share if report.stats else 0.0
        rows.append({
            "network": name, "contestant": contestant, "steps": len(steps), "rate": len(steps) / sum(steps),
            "median": statistics.median(steps), "late_share": late, "error": "",
        })  # fmt: skip
    plain = next((row["rate"] for row in rows if row["contestant"] == "ddp" and not row["error"]), None)
    for row in rows:
        row["speedup"] = row["rate"] / plain if plain and not row["error"] else None
    return rows


def page(result: dict[str, Any]) -> str:
    lines = [
        "# NetSenseML's changing settings: 8 workers", "", f"    {result['command']}", "",
        f"{result['workload']}; each contestant trains {result['lasting']:g} s in its own lab. The bandwidth changes "
        f"every {EVERY:g} s. gradwire {result['machine']['revision']}, torch {result['machine']['torch']}, "
        f"{result['machine']['cores']} cores.", "",
        "| network | contestant | steps | steps a second | x ddp | packets over 1 ms late in the lab |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in result["rows"]:
        if row["error"]:
            lines.append(f"| {row['network']} | {row['contestant']} | failed: {row['error']} | | | |")
            continue
        rate = f"{row['rate']:.2f} | {row['speedup']:.2f}"
        lines.append(
            f"| {row['network']} | {row['contestant']} | {row['steps']} | {rate} | {100 * row['late_share']:.1f} % |"
        )
    return "\n".join(lines) + "\n"


def write(folder: Path, workload: WorkloadSpec, lasting: float, rows: list[dict[str, Any]]) -> None:
    """Add the rows so far to the results of earlier runs on other networks."""
    path = folder / "netsense-changing.json"
    known = json.loads(path.read_text())["rows"] if path.exists() else []
    fresh = {row["network"] for row in rows}
    result = {
        "command": f"python benchmarks/netsense_changing.py --lasting {lasting:g} --out DIR",
        "workload": workload.about, "lasting": lasting, "machine": facts.machine_facts(),
        "rows": [row for row in known if row["network"] not in fresh] + rows,
    }  # fmt: skip
    path.write_text(json.dumps(result, indent=1) + "\n")
    (folder / "netsense-changing.md").write_text(page(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", default="degrading,fluctuating")
    parser.add_argument("--workload", default="paced:resnet18")
    parser.add_argument("--lasting", type=float, default=60.0, help="seconds of training for each contestant")
    parser.add_argument("--out", type=Path, default=None, help="write netsense-changing.json and .md here")
    options = parser.parse_args()
    workload, console = WorkloadSpec.parse(options.workload), Console(stderr=True)
    rows: list[dict[str, Any]] = []
    try:
        for name in options.nets.split(","):
            rows += measure(name, workload, options.lasting, console)
            if options.out:
                write(options.out, workload, options.lasting, rows)
    except GradwireError as error:
        sys.exit(f"netsense_changing: {error}")
    table = Table(title="NetSenseML's changing settings")
    for column in ("network", "contestant", "steps", "x ddp"):
        table.add_column(column)
    for row in rows:
        fast = row["error"] or f"{row['speedup']:.2f}"
        table.add_row(row["network"], row["contestant"], str(row.get("steps", "")), fast)
    Console().print(table)


if __name__ == "__main__":
    main()
