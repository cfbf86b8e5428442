"""`gradwire demo`: 4 hosts of the lab train a small CNN with plain DDP, then with gradwire, and compare both."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from gradwire.cli.report import write_report
from gradwire.cli.signals import leave_cleanly
from gradwire.config import resolve
from gradwire.errors import LinkError
from gradwire.lab import Lab
from gradwire.lab.interrupts import Interrupts
from gradwire.network import Network, load_network
from gradwire.observe.follow import FollowedRun
from gradwire.observe.report import load
from gradwire.units import Bytes, Seconds

# Seconds; enough for the slowest preset. A run that hangs is ended.
RUN_LIMIT = 600.0

Report = dict[str, Any]


@click.command()
@click.option("--net", default="lan100", show_default=True, help="A preset, or a TOML network file.")
@click.option(
    "--hosts", default=4, show_default=True, type=click.IntRange(2, 16), help="Number of hosts, one rank each."
)
@click.option("--level", default="auto", show_default=True, help="auto, or a level such as int8.")
@click.option("--data", default="", help="fashion-mnist or digits; default: fashion-mnist if installed.")
@click.option(
    "--steps", default=240, show_default=True, type=click.IntRange(10, 10_000), help="Approximate training steps."
)
@click.option("--out", metavar="DIR", help="Directory of recordings and report; default: runs/demo-<time>.")
@click.option("--no-watch", is_flag=True, help="Progress bars only, no live view.")
@click.option("--json", "as_json", is_flag=True, help="Print only the result, as JSON.")
def demo(  # noqa: PLR0913, PLR0917 - a command's arguments are its options
    net: str, hosts: int, level: str, data: str, steps: int, out: str | None, no_watch: bool, as_json: bool
) -> None:
    """Train a small CNN twice on the same slow network, with plain DDP and with gradwire, and compare both."""
    leave_cleanly()
    console = Console(stderr=as_json, quiet=as_json)
    folder = Path(out or time.strftime("runs/demo-%Y%m%d-%H%M%S")).resolve()
    resolve(level)  # report a wrong level before the first run
    network = load_network(net, hosts)
    name = _data(data)
    console.print(f"{hosts} hosts on {net} train a CNN on {name}: plain DDP, then gradwire ({level}).")
    if network.about:
        console.print(f"[dim]{network.about}[/dim]")
    runs = [("plain DDP", ""), ("gradwire", level)]
    watched = console.is_terminal and not no_watch and not as_json
    with Interrupts():
        results = _run_all(console, network, runs, ["--data", name, *_length(name, hosts, steps)], (folder, watched))
    recordings = tuple(str(folder / _folder_name(name)) for name, _ in runs)
    [report] = write_report(recordings, folder / "report.html")
    for result, run in zip(results, load(recordings), strict=True):
        result["step_seconds"] = run.facts.step_mean  # the same number as in the report
    if as_json:
        click.echo(json.dumps(results))
        return
    console.print(_table(results))
    for reason in results[-1]["reasons"]:
        console.print(f"gradwire chose {reason}", highlight=False)
    console.print(f"Report with plots: {report}", highlight=False, soft_wrap=True)
    console.print(f"[dim]Replay: gradwire replay {recordings[-1]}[/dim]", highlight=False, soft_wrap=True)


def _data(name: str) -> str:
    from gradwire.demo.data import choose  # imports torch

    return choose(name)


def _length(data: str, hosts: int, steps: int) -> list[str]:
    """Arguments for about `steps` steps of 32 images per rank."""
    whole = 1400 if data == "digits" else 60_000
    wanted = steps * hosts * 32
    epochs = max(1, round(wanted / whole))
    return ["--epochs", str(epochs), "--samples", str(min(whole, wanted // epochs))]


def _folder_name(run: str) -> str:
    return run.replace(" ", "-")


def _run_all(
    console: Console, network: Network, runs: list[tuple[str, str]], extra: list[str], kept: tuple[Path, bool]
) -> list[Report]:
    """Run each; `kept` is the directory of the recordings, and whether they are shown live."""
    folder, watched = kept
    columns = (TextColumn("{task.description:>10}"), BarColumn(24), TextColumn("{task.fields[note]}"))
    progress = Progress(*columns, TimeRemainingColumn(), console=console)
    tasks = [progress.add_task(name, total=None, note="waiting", start=False) for name, _ in runs]
    results = []
    with (
        Live(progress, console=console, refresh_per_second=8, transient=watched) as live,
        Lab(network, console.print, mode="auto") as lab,
    ):
        for (name, level), task in zip(runs, tasks, strict=True):
            progress.start_task(task)
            progress.update(task, note="starting")
            record = folder / _folder_name(name)
            if watched and level:
                live.update(Group(progress, "", FollowedRun(record)))
            result = _follow(
                lab, [*extra, "--level", level, "--record", str(record)], _progress_updater(progress, task)
            )
            results.append({"name": name, "level": level or "off", **result})
    return results


def _progress_updater(progress: Progress, task: TaskID) -> Callable[[Report], None]:
    """A function that shows the reports of one run."""

    def show(report: Report) -> None:
        if "step" in report:
            note = f"step {report['step']}/{report['total']}  loss {report['loss']:.3f}"
            progress.update(task, total=report["total"], completed=report["step"], note=note)
        elif report.get("done"):
            progress.update(task, note=f"{Seconds(report['step_seconds'])} per step")

    return show


def _follow(lab: Lab, arguments: list[str], show: Callable[[Report], None]) -> Report:
    """Run the training script on every host; returns rank 0's final report."""
    result: Report = {"curve": []}
    output: list[str] = []

    def on_line(host: str, line: str) -> None:
        if not line.startswith("{"):
            output.append(f"{host} | {line}")
            return
        report = json.loads(line)
        show(report)
        if "accuracy" in report:
            result["curve"].append((report["seconds"], report["accuracy"]))
            result["accuracy"] = report["accuracy"]
        elif report.get("done"):
            result.update(report)

    run = lab.run([sys.executable, "-m", "gradwire.demo.train", *arguments], timeout=RUN_LIMIT, on_line=on_line)
    if run.code or "done" not in result:
        raise LinkError(f"training ended with code {run.code}:\n" + "\n".join(output[-20:]))
    return result | {"lab": run.stats.verdict, "mode": lab.mode}


def _table(results: list[Report]) -> Table:
    base = results[0]["step_seconds"]
    table = Table(title="Result", title_justify="left")
    for column in ("", "accuracy", "step", "speed-up", "sent per step", "replicas"):
        table.add_column(column, justify="left" if column in ("", "replicas") else "right")
    for result in results:
        table.add_row(
            result["name"],
            f"{result['accuracy']:.1%}",
            str(Seconds(result["step_seconds"])),
            f"{base / result['step_seconds']:.2f}x",
            str(Bytes(result["wire_bytes"])),
            "identical" if result["identical"] else "DIFFER",
        )
    return table
