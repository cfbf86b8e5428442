"""`gradwire demo`: 4 ranks on this machine train a small CNN, plain DDP and gradwire side by side, while you watch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from gradwire.units import Bytes, Seconds

RUNS = (("plain DDP", ""), ("gradwire", "topk:0.05+int8"))


@click.command()
@click.option("--ranks", default=4, show_default=True, type=click.IntRange(2, 16), help="Processes to train with.")
@click.option("--level", default=RUNS[1][1], show_default=True, help="What gradwire does, for example int8.")
@click.option("--data", default="", help="fashion-mnist or digits; the best that is installed by default.")
@click.option("--epochs", default=0, type=click.IntRange(0, 50), help="0: as many as fit in a minute.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON and nothing else.")
def demo(ranks: int, level: str, data: str, epochs: int, as_json: bool) -> None:
    """Train a small CNN twice, with plain DDP and with gradwire, and compare."""
    console = Console(stderr=as_json, quiet=as_json)
    name = data or _best_data()
    extra = ["--data", name, "--epochs", str(epochs or (6 if name == "digits" else 1))]
    if name == "fashion-mnist":
        extra += ["--samples", "24000"]
    console.print(f"{ranks} ranks on this machine train a CNN on {name}; gradwire level [bold]{level}[/bold].")
    results = _run_both(console, [(RUNS[0][0], ""), (RUNS[1][0], level)], extra, ranks)
    if as_json:
        click.echo(json.dumps(results))
        return
    console.print(_table(results))
    for reason in results[-1]["reasons"]:
        console.print(f"gradwire chose {reason}", highlight=False)


def _best_data() -> str:
    from gradwire.demo.data import load

    return load().name


def _run_both(console: Console, runs: list[tuple[str, str]], extra: list[str], ranks: int) -> list[dict[str, Any]]:
    columns = (TextColumn("{task.description:>10}"), BarColumn(), TextColumn("{task.fields[note]}"))
    progress = Progress(*columns, TimeRemainingColumn(), console=console)
    tasks = [progress.add_task(name, total=None, note="waiting", start=False) for name, _ in runs]
    results = []
    with Live(Group(progress), console=console, refresh_per_second=8):
        for (name, level), task in zip(runs, tasks, strict=True):
            arguments = [*extra, "--level", level]
            progress.start_task(task)
            progress.update(task, note="starting")
            results.append({"name": name, "level": level or "off", **_follow(progress, task, arguments, ranks)})
    return results


def _follow(progress: Progress, task: TaskID, arguments: list[str], ranks: int) -> dict[str, Any]:
    """Show one run's reports as they come; returns its result."""
    result: dict[str, Any] = {"curve": []}
    for report in _reports(arguments, ranks):
        if "accuracy" in report:
            result["curve"].append((report["seconds"], report["accuracy"]))
            result["accuracy"] = report["accuracy"]
        elif "step" in report:
            note = f"step {report['step']}/{report['total']}  loss {report['loss']:.3f}"
            progress.update(task, total=report["total"], completed=report["step"], note=note)
        elif report.get("done"):
            result |= report
            note = f"accuracy {result['accuracy']:.2%}  {Seconds(result['step_seconds'])} a step"
            progress.update(task, note=note)
    return result


def _reports(arguments: list[str], ranks: int) -> Iterator[dict[str, Any]]:
    from gradwire.demo.launch import follow

    return follow(arguments, ranks)


def _table(results: list[dict[str, Any]]) -> Table:
    table = Table(title="What it came to", title_justify="left")
    for column in ("", "accuracy", "step time", "sent per rank and step", "replicas"):
        table.add_column(column, justify="left" if column in ("", "replicas") else "right")
    for result in results:
        table.add_row(
            f"{result['name']} ({result['level']})",
            f"{result['accuracy']:.2%}",
            str(Seconds(result["step_seconds"])),
            f"{Bytes(result['wire_bytes'])} ({result['saved']:.1f}x less)",
            "identical" if result["identical"] else "DIFFER",
        )
    return table
