"""Case: the description of a benchmark, and the command line that all case files share.

    case = Case("compressors", "paced:resnet18", networks=("lan100",), hosts=4, contestants=("ddp", "gradwire:int8"))
    if __name__ == "__main__":
        main(case)

prints a table and one JSON line; with --out DIR writes NAME.json, NAME.md and NAME.png.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from gradwire.errors import GradwireError
from gradwire.lab.lab import Mode
from gradwire.network import Network, load_network
from harness import facts, page
from harness.contestants import NO_SYNC, RING, find
from harness.job import Job, interleaved
from harness.result import Row, as_json, rows_of, table
from harness.run import run
from harness.workload import WorkloadSpec


@dataclass(frozen=True, slots=True)
class Case:
    """Defaults of one case file; the command line overrides them.

    With several workloads, every network runs with each. `mode` is the lab's: "loopback" has no emulator between the
    ranks.
    """

    name: str
    workload: str | tuple[str, ...]
    networks: tuple[str | Network, ...]
    hosts: int
    contestants: tuple[str, ...]
    title: str = ""
    compute_ms: float | None = None
    repeat: int = 3
    seconds: float = 3.0
    mode: Mode = "namespaces"

    @property
    def workloads(self) -> tuple[str, ...]:
        return (self.workload,) if isinstance(self.workload, str) else self.workload


def options_of(case: Case, arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=case.title or case.name)
    parser.add_argument("--net", action="append", help="a preset or a TOML file; may be given several times")
    parser.add_argument("--hosts", type=int, default=case.hosts)
    parser.add_argument("--repeat", type=int, default=case.repeat, help="rounds; contestants alternate in each")
    parser.add_argument("--seconds", type=float, default=case.seconds, help="approximate time measured in a block")
    parser.add_argument("--quick", action="store_true", help="one round of two steps each, to check that it runs")
    parser.add_argument("--workload", action="append", help="paced:MODEL or real:MODEL; may be given several times")
    parser.add_argument("--contestants", default=",".join(case.contestants), help="names, separated by commas")
    parser.add_argument("--compute-ms", type=float, default=case.compute_ms, help="paced: compute time of a step")
    parser.add_argument("--batch", type=int, default=16, help="real: samples a rank and step")
    parser.add_argument("--data", default=None, help="real: directory with cifar10/, tinyshakespeare/, fashion-mnist/")
    parser.add_argument("--dilate", type=float, help="stretch the lab's time by this factor (docs/lab.md)")
    parser.add_argument("--port", type=int, default=29500)
    parser.add_argument("--out", type=Path, default=None, help="write NAME.json, NAME.md, NAME.png here")
    return parser.parse_args(arguments)


def measure(case: Case, options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Run the case; return the contents of its result file."""
    workloads = [
        WorkloadSpec.parse(text, options.compute_ms, options.data, options.batch)
        for text in options.workload or case.workloads
    ]
    names = [name.strip() for name in options.contestants.split(",") if name.strip()]
    for name in names:
        if name != RING:
            find(name)
    networks = [load_network(net, options.hosts) for net in options.net or []] or [
        net if isinstance(net, Network) else load_network(net, options.hosts) for net in case.networks
    ]
    repeat, seconds, fewest = (1, 0.0, 2) if options.quick else (options.repeat, options.seconds, 3)
    blocks = interleaved([n for n in names if n != RING], repeat)
    machine = facts.machine_facts()
    rows: list[Row] = []
    for network in networks:
        for workload in workloads:
            label = network.name if len(workloads) == 1 else f"{network.name}, {workload.model}"
            console.print(f"[bold]{label}[/bold]")
            job = Job(workload, blocks, seconds, fewest, port=options.port)
            reports = run(network, job, lambda text: console.print(f"[dim]{text}[/dim]"), case.mode, options.dilate)
            rows += rows_of(replace(network, name=label), workload, names, reports)
    machine["load_after"] = round(os.getloadavg()[0], 2)
    return {
        "case": case.name,
        "title": case.title,
        "command": command(),
        "workloads": [_workload_facts(workload) for workload in workloads],
        "networks": [{"name": n.name, "hosts": len(n.ranks), "links": str(n.links[0].spec)} for n in networks],
        "congestion": sorted({network.congestion for network in networks}),
        "repeat": repeat,
        "dilate": 1.0 if options.dilate is None else options.dilate,
        "machine": machine,
        "rows": rows,
    }


def _workload_facts(workload: WorkloadSpec) -> dict[str, Any]:
    sums = {"about": workload.about, "seconds": workload.seconds, "parameters": workload.numel}
    return {**asdict(workload), "data": None, **sums}


def command() -> str:
    """The command that repeats this run, without local paths."""
    hidden = {"--out": "DIR", "--data": "DIR"}
    words = [Path(sys.argv[0]).name, *sys.argv[1:]]
    shown = [hidden.get(before, word) for before, word in zip(["", *words], words, strict=False)]
    return "python benchmarks/" + " ".join(shown)


def main(case: Case, arguments: Sequence[str] | None = None) -> None:
    """Entry point of a case file."""
    options = options_of(case, arguments)
    console = Console(stderr=True)
    try:
        result = measure(case, options, console)
    except GradwireError as error:
        sys.exit(f"{case.name}: {error}")
    rows: list[Row] = result["rows"]
    shown = Console(width=max(Console().width, 150))
    shown.print(table(case.title or case.name, rows))
    result["rows"] = [as_json(row) for row in rows]
    if options.out:
        page.write(options.out, result, rows)
    print(json.dumps(result))
    if any(row.error for row in rows):
        sys.exit(1)


__all__ = ["NO_SYNC", "RING", "Case", "main", "measure", "options_of"]
