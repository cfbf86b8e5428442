"""Page: a result as NAME.json, NAME.md and NAME.png.

`python benchmarks/harness/page.py RESULT.json` writes the page and the plot of a result again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))

from harness import plot
from harness.contestants import NO_SYNC
from harness.result import Row, cells

HEAD = ("network", "contestant", "ms a step (p10..p90)", "x ddp", "of bound", "exposed", "payload", "wire", "CPU")
# A step without communication that takes this much longer than the stated compute ran on a machine that is too busy.
OVERLOADED = 1.3


def write(folder: Path, result: dict[str, Any], rows: Sequence[Row]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    name, title = result["case"], result["title"] or result["case"]
    (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    (folder / f"{name}.md").write_text(markdown(result, rows))
    plot.save(folder / f"{name}.png", title, rows)


def workloads(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Result files of earlier versions have a single workload."""
    return list(result["workloads"]) if "workloads" in result else [result["workload"]]


def caveats(result: dict[str, Any], rows: Sequence[Row]) -> list[str]:
    """What a reader must know before relying on a row."""
    found = [f"- **{row.network}, {row.contestant}: {row.lab}**" for row in rows if "COULD NOT" in row.lab]
    found += [f"- **{row.network}, {row.contestant} failed: {row.error}**" for row in rows if row.error]
    works = workloads(result)
    for row in rows:
        stated = next((w["seconds"] for w in works if row.network.endswith(f", {w['model']}")), works[0]["seconds"])
        if row.contestant == NO_SYNC and stated and row.median > OVERLOADED * stated:
            found.append(
                f"- {row.network}: compute alone took {row.median * 1e3:.0f} ms instead of the stated "
                f"{stated * 1e3:.0f} ms, because the ranks of all hosts share this machine's cores; this slows "
                "every contestant, and compression takes more time than it would on separate hosts."
            )
    return found or ["The lab kept up in every block."]


def markdown(result: dict[str, Any], rows: Sequence[Row]) -> str:
    machine = result["machine"]
    abouts = "; ".join(f"{work['about']}, {work['parameters']:,} parameters" for work in workloads(result))
    notes = [f"- `{name}`: {about}" for name, about in {row.contestant: row.settings for row in rows}.items()]
    lines = [
        f"# {result['title'] or result['case']}", "", f"    {result['command']}", "",
        f"Workload: {abouts}. "
        f"TCP congestion control: {', '.join(result['congestion'])}. "
        f"{result['repeat']} rounds, contestants alternating.",
        "",
        f"Machine: {machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, torch {machine['torch']}, "
        f"gradwire {machine['revision']}, {machine['time']}. {_load(machine)}", "",
        f"| {' | '.join(HEAD)} |", "|" + "---|" * len(HEAD), *(f"| {' | '.join(cells(row))} |" for row in rows), "",
        *caveats(result, rows), "",
        f"![time per step]({result['case']}.png)", "", "Settings:", *notes, "",
        "`payload` and `wire` are bytes per rank and step: what TCP carried once, and what the access link carried "
        "with headers and retransmissions. `exposed` is the step less that of `no-sync`. `of bound` is the fp32 ring "
        "bound over the step; compression may exceed 1.", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _load(machine: dict[str, Any]) -> str:
    if not machine["shared_machine"]:
        return f"Load {machine['load_before']} before the run on {machine['cores']} cores."
    return (
        f"The machine was shared: load {machine['load_before']} before and {machine['load_after']} after on "
        f"{machine['cores']} cores. Ratios within the run are more reliable than absolute times."
    )


def main() -> None:
    for name in sys.argv[1:]:
        result = json.loads(Path(name).read_text())
        write(Path(name).parent, result, [Row(**row) for row in result["rows"]])


if __name__ == "__main__":
    main()
