"""Changing networks: real training while the network changes; `auto` against every fixed setting, by time to a loss.

    python benchmarks/changing.py --data DIR [--nets drop,lte,starlink-like] [--limit 60] [--out DIR]

The demo's CNN on Fashion-MNIST, 4 hosts, same seed and data order for all. `drop` is 1 Gbit/s that falls to 20 Mbit/s
after 5 s of training and recovers after 20, by each contestant's own clock. Traces start with the first report. A
contestant's clock counts training steps only, not evaluation. The loss is rank 0's, smoothed over the last 50 steps;
a contestant that has not reached the target at the limit shows its last loss. `auto` records its events, and the plot
shows the measured bandwidth and the chosen levels.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from rich.console import Console
from rich.table import Table

from gradwire.decide.ladder import LADDER
from gradwire.events import Decided, Sensed
from gradwire.lab import Lab
from gradwire.network import Change, Network, load_network, parse_network
from gradwire.observe.reader import read
from gradwire.units import Rate, Seconds
from harness import facts

LEVELS = ("", "int8", "topk:0.1+int8", "topk:0.01+int8", "auto")
DROP = """
hosts = 4
[access]
rate = "1gbit"
delay = "500us"
queue = "512KiB"
"""
# Seconds of training, and the rate from then on: by the contestant's own clock, so that all have the same fast start.
DROPS = ((5.0, Rate.from_mbit(20)), (20.0, Rate.from_mbit(1000)))
# Reports that the smoothed loss is the mean of; there is one every five steps.
SMOOTH = 10


@dataclass(slots=True)
class Run:
    """One contestant on one network: its curve, and when it reached the target."""

    network: str
    level: str
    curve: list[tuple[float, float]] = field(default_factory=list)
    reached: float | None = None
    steps: int = 0
    accuracy: float | None = None

    def add(self, line: str, target: float) -> None:
        report = json.loads(line)
        self.accuracy = report.get("accuracy", self.accuracy)
        if "loss" not in report:
            return
        self.steps = report["step"]
        self.curve.append((report["seconds"], report["loss"]))
        if self.reached is None and self.loss <= target:
            self.reached = report["seconds"]

    @property
    def loss(self) -> float:
        recent = self.curve[-SMOOTH:]
        return statistics.fmean(loss for _, loss in recent) if len(recent) == SMOOTH else float("inf")


def network_of(name: str) -> Network:
    return parse_network(DROP, "drop") if name == "drop" else load_network(name, 4)


def train(network: Network, level: str, record: Path, options: argparse.Namespace) -> Run:
    """One training run in a lab of its own, ended by its epochs or by the limit."""
    run = Run(network.name, level or "plain DDP")
    output: list[str] = []
    drops = list(DROPS) if network.name == "drop" else []

    def on_line(host: str, line: str) -> None:
        if line.startswith("{"):
            if not run.curve:
                lab.emulator.begin()  # restart the trace, which began when Python started
            run.add(line, options.target)
            while drops and run.curve and run.curve[-1][0] >= drops[0][0]:
                lab.apply(Change(Seconds(0), "*", drops.pop(0)[1]))
        else:
            output.append(f"{host}: {line}")

    command = [sys.executable, "-m", "gradwire.demo.train", "--level", level, "--data", "fashion-mnist"]
    command += ["--data-dir", str(options.data), "--samples", str(options.samples), "--epochs", str(options.epochs)]
    with Lab(network) as lab:
        result = lab.run(command, env={"GRADWIRE_RECORD": str(record)}, timeout=options.limit + 20, on_line=on_line)
    if result.code and not result.timed_out:
        sys.exit("\n".join([*output[-30:], f"{run.network}, {run.level}: ended with {result.code}"]))
    return run


def plot(path: Path, network: str, record: Path, runs: list[Run]) -> None:
    """Measured bandwidth and chosen levels of `auto`, and the loss of all contestants, over the same time axis."""
    events = [entry.event for entry in read(record)]
    sensed = [event for event in events if isinstance(event, Sensed) and event.bandwidth]
    decided = [event for event in events if isinstance(event, Decided) and event.bucket == 0]
    if not sensed or not decided:
        return
    begin = sensed[0].at
    names = [str(rung.level) for rung in LADDER]
    figure, (top, middle, low) = plt.subplots(3, 1, figsize=(9, 8), constrained_layout=True)
    top.semilogy([e.at - begin for e in sensed], [(e.bandwidth or 0) * 8 / 1e6 for e in sensed])
    top.set_ylabel("measured, Mbit/s")
    top.set_title(f"{network}: bandwidth measured by auto, its levels, and the loss")
    chosen = [e for e in decided if e.level in names]
    ends = [*(e.at - begin for e in chosen[1:]), sensed[-1].at - begin]
    for event, end in zip(chosen, ends, strict=False):
        middle.hlines(names.index(event.level), max(0.0, event.at - begin), end, linewidth=3)
    middle.set_yticks(range(len(names)), names)
    middle.sharex(top)
    for run in runs:
        low.plot([at for at, _ in run.curve], [loss for _, loss in run.curve], label=run.level)
    low.set_ylabel("loss")
    low.set_xlabel("seconds of training")
    low.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def result_table(runs: list[Run], target: float) -> Table:
    table = Table(title=f"seconds of training until the loss is {target}")
    for column in ("network", "contestant", "seconds", "against auto", "steps", "loss at the end", "accuracy"):
        table.add_column(column)
    for run in runs:
        table.add_row(*cells(run, runs))
    return table


def cells(run: Run, runs: list[Run]) -> list[str]:
    best = next((one.reached for one in runs if one.network == run.network and one.level == "auto"), None)
    last = run.curve[-1][0] if run.curve else 0.0
    seconds = f"{run.reached:.1f}" if run.reached else f"> {last:.0f}"
    ratio = f"{(run.reached or last) / best:.2f}" if best else "-"
    accuracy_text = f"{run.accuracy:.3f}" if run.accuracy is not None else "-"
    return [
        run.network,
        run.level,
        seconds,
        ratio if run.reached else f"> {ratio}",
        str(run.steps),
        f"{run.loss:.2f}",
        accuracy_text,
    ]


def write(folder: Path, runs: list[Run], options: argparse.Namespace) -> None:
    """Add the runs to the results of earlier runs on other networks."""
    folder.mkdir(parents=True, exist_ok=True)
    path, fresh = folder / "changing.json", {run.network for run in runs}
    known = [Run(**result) for result in json.loads(path.read_text())["runs"]] if path.exists() else []
    runs = [run for run in known if run.network not in fresh] + runs
    machine = facts.machine_facts()
    result = {"machine": machine, "target": options.target, "runs": [asdict(run) for run in runs]}
    path.write_text(json.dumps(result) + "\n")
    head = ("network", "contestant", "seconds", "against auto", "steps", "loss at the end", "accuracy")
    lines = ["# Changing networks: time to a loss", ""]
    lines += [f"    python benchmarks/changing.py --data DIR --limit {options.limit:g} --target {options.target}", ""]
    lines += [
        f"Fashion-MNIST CNN, 4 hosts, one seed, {options.samples} samples x {options.epochs} epochs; the target is "
        f"a smoothed loss of {options.target}. gradwire {machine['revision']}, torch {machine['torch']}, "
        f"{machine['cores']} cores. `> x` had not reached it when the limit ended.",
        "",
        f"| {' | '.join(head)} |",
        "|" + "---|" * len(head),
    ]
    lines += [f"| {' | '.join(cells(run, runs))} |" for run in runs]
    names = dict.fromkeys(run.network for run in runs)
    plots = [f"![{name}](changing-{name}.png)\n" for name in names if (folder / f"changing-{name}.png").exists()]
    lines += ["", *plots]
    (folder / "changing.md").write_text("\n".join(lines) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="directory with Fashion-MNIST's IDX files")
    parser.add_argument("--nets", default="drop,lte,starlink-like")
    parser.add_argument("--levels", default=",".join(LEVELS), help="fixed levels and controllers; empty is plain DDP")
    parser.add_argument("--samples", type=int, default=20000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--target", type=float, default=0.45)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of a run, about")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    runs: list[Run] = []
    console = Console(stderr=True)
    for name in options.nets.split(","):
        with tempfile.TemporaryDirectory() as folder:
            network_runs = []
            for level in options.levels.split(","):
                console.print(f"[dim]{name}: {level or 'plain DDP'}[/dim]")
                network_runs.append(
                    train(network_of(name), level, Path(folder) / (level or "plain").replace(":", "-"), options)
                )
            if options.out and "auto" in options.levels:
                options.out.mkdir(parents=True, exist_ok=True)
                plot(options.out / f"changing-{name}.png", name, Path(folder) / "auto", network_runs)
            runs += network_runs
            if options.out:
                write(options.out, runs, options)
    Console(width=130).print(result_table(runs, options.target))


if __name__ == "__main__":
    main()
