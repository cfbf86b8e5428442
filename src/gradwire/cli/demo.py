"""`gradwire demo`: hosts of the lab train a small CNN with plain DDP, torch's PowerSGD and gradwire, while the network
becomes slow half-way; ends with a verdict, a picture and what to do next."""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live

from gradwire.cli.report import write_report
from gradwire.cli.signals import leave_cleanly
from gradwire.config import resolve
from gradwire.demo import screen
from gradwire.demo.story import FAST, SLOW, Contestant, Halves, change_to, contestants, failing_line
from gradwire.errors import LinkError
from gradwire.lab import Lab, RunResult
from gradwire.lab.interrupts import Interrupts
from gradwire.lab.machine_load import disturbance
from gradwire.network import load_network
from gradwire.observe.follow import FollowedRun
from gradwire.observe.outcome import outcome_of
from gradwire.observe.report import ReportedRun, load
from gradwire.observe.verdict import judge

# Seconds; enough for the slowest preset. A run that hangs is ended.
RUN_LIMIT = 600.0

Report = dict[str, Any]


@click.command()
@click.option("--net", default="", help="A preset, or a TOML network file; default: a link that drops half-way.")
@click.option(
    "--hosts", default=4, show_default=True, type=click.IntRange(2, 16), help="Number of hosts, one rank each."
)
@click.option("--level", default="auto", show_default=True, help="auto, or a level such as int8.")
@click.option("--data", default="", help="fashion-mnist or digits; default: fashion-mnist if installed.")
@click.option(
    "--steps", default=120, show_default=True, type=click.IntRange(10, 10_000), help="Approximate training steps."
)
@click.option("--dilate", type=float, metavar="FACTOR", help="Stretch time, as in gradwire lab run.")
@click.option("--out", metavar="DIR", help="Directory of recordings and report; default: runs/demo-<time>.")
@click.option("--no-watch", is_flag=True, help="Progress only, no live view.")
@click.option("--json", "as_json", is_flag=True, help="Print only the result, as JSON.")
def demo(  # noqa: PLR0913, PLR0917 - a command's arguments are its options
    net: str,
    hosts: int,
    level: str,
    data: str,
    steps: int,
    dilate: float | None,
    out: str | None,
    no_watch: bool,
    as_json: bool,
) -> None:
    """Train a small CNN three times while the network becomes slow half-way: plain DDP, torch's PowerSGD, gradwire."""
    leave_cleanly()
    console = Console(stderr=as_json, quiet=as_json)
    folder = Path(out or time.strftime("runs/demo-%Y%m%d-%H%M%S")).resolve()
    resolve(level)  # report a wrong level before the first run
    network = load_network(net, hosts) if net else failing_line(hosts)
    name = _data(data)
    console.print(f"{hosts} hosts train a CNN on {name}: plain DDP, torch's PowerSGD, then gradwire ({level}).")
    console.print(f"[dim]{network.about}[/dim]" if network.about else f"[dim]{net}[/dim]")
    watched = console.is_terminal and not no_watch and not as_json
    training = ["--data", name, *_length(name, hosts, steps)]
    with Interrupts(), ExitStack() as labs:
        lab = labs.enter_context(Lab(network, console.print, mode="auto", dilate=dilate))
        changes = not net and lab.mode != "loopback"
        if not net and not changes:  # loopback cannot change rates: all of it is slow
            lab = labs.enter_context(Lab(failing_line(hosts, SLOW), mode="loopback", dilate=dilate))
        show = Show(console, folder, watched, changes)
        results = show.run_all(lab, contestants(level), training)
    _finish(console, show, results, folder, as_json)


def _data(name: str) -> str:
    from gradwire.demo.data import choose  # imports torch

    return choose(name)


def _length(data: str, hosts: int, steps: int) -> list[str]:
    """Arguments for about `steps` steps of 32 images per rank."""
    whole = 1400 if data == "digits" else 60_000
    wanted = steps * hosts * 32
    epochs = max(1, round(wanted / whole))
    return ["--epochs", str(epochs), "--samples", str(min(whole, wanted // epochs))]


@dataclass(slots=True)
class Show:
    """Runs the contestants one after the other, and shows them side by side."""

    console: Console
    folder: Path
    watched: bool
    # Whether the links change half-way.
    changes: bool
    halves: dict[str, Halves] = field(default_factory=dict)
    results: list[RunResult] = field(default_factory=list)
    mode: str = ""

    def run_all(self, lab: Lab, runs: tuple[Contestant, ...], training: list[str]) -> list[Report]:
        self.mode = lab.mode
        self.halves = {run.name: Halves() for run in runs}
        found = []
        with Live(console=self.console, refresh_per_second=8, transient=self.watched) as live:
            for run in runs:
                found.append({"name": run.name, **self._run(lab, live, run, training)})
        return found

    def _run(self, lab: Lab, live: Live, run: Contestant, training: list[str]) -> Report:
        """One contestant on the network as it is at the beginning; returns rank 0's final report."""
        record = self.folder / run.folder
        followed = FollowedRun(record)
        if self.changes:
            lab.apply(change_to(FAST))
        result: Report = {"curve": []}
        output: list[str] = []

        def draw(now: str) -> None:
            parts = [screen.progress(self.halves, run.name, now)]
            live.update(Group(*parts, "", followed) if self.watched else parts[0])

        def on_line(host: str, line: str) -> None:
            if not line.startswith("{"):
                output.append(f"{host} | {line}")
                return
            self._take(lab, run.name, json.loads(line), result)
            draw(self._rate_now(run.name))

        draw("starting")
        command = [sys.executable, "-m", "gradwire.demo.train", *training, *run.arguments, "--record", str(record)]
        done = lab.run(command, timeout=RUN_LIMIT, on_line=on_line)
        draw("done")
        if done.code or "done" not in result:
            raise LinkError(f"{run.name}: training ended with code {done.code}:\n" + "\n".join(output[-20:]))
        self.results.append(done)
        return result | {"lab": done.stats.verdict, "mode": lab.mode, "others": done.others}

    def _take(self, lab: Lab, name: str, report: Report, result: Report) -> None:
        half = self.halves[name]
        if "step" in report:
            turned = half.take(report["step"], report["total"], report["seconds"], report["loss"])
            if turned and self.changes:
                lab.apply(change_to(SLOW))
        elif "accuracy" in report:
            half.accuracy = result["accuracy"] = report["accuracy"]
            result["curve"].append((report["seconds"], report["accuracy"]))
        elif report.get("done"):
            result.update(report)

    def _rate_now(self, name: str) -> str:
        half = self.halves[name]
        return f"links at {FAST if half.step < half.total // 2 else SLOW}" if self.changes else ""


def _finish(console: Console, show: Show, results: list[Report], folder: Path, as_json: bool) -> None:
    """The report, then the verdict, the picture and the next commands."""
    recordings = tuple(str(folder / name.replace(" ", "-")) for name in show.halves)
    [report] = write_report(recordings, folder / "report.html")
    runs = load(recordings)
    for result, run in zip(results, runs, strict=True):
        result["step_seconds"] = run.facts.step_mean  # the same number as in the report
    if as_json:
        click.echo(json.dumps(results))
        return
    ours = runs[-1].facts
    console.print()
    console.print(screen.verdict(ours.verdict, _against(runs[1], runs[2])))
    console.print()
    console.print(screen.picture(show.halves, min(console.width, 100), show.changes))
    if not all(result["identical"] for result in results):
        console.print("Replicas DIFFER at the end of a run: this is an error.", style="bold red")
    load_now = disturbance(max(result.others for result in show.results))
    problems = sorted({problem for result in show.results for problem in result.stats.problems})
    for doubt in screen.doubts(load_now, problems, show.mode == "loopback"):
        console.print(doubt, style="yellow")
    console.print("\nNext:", style="bold")
    for command, about in _next(report, folder):
        console.print(f"  {command}", style="cyan", highlight=False, soft_wrap=True)
        console.print(f"      {about}", style="dim", highlight=False)


def _against(peer: ReportedRun, ours: ReportedRun) -> str:
    """gradwire compared with the second run."""
    found = judge(outcome_of(ours.facts.name, ours.state), outcome_of(peer.facts.name, peer.state))
    return found.headline


def _next(report: Path, folder: Path) -> list[tuple[str, str]]:
    return [
        (f"gradwire dashboard {folder}", f"every decision with its reason, live or afterwards; as a page: {report}"),
        ("gradwire estimate --params 124M --step 180ms --rate 200mbit --rtt 40ms --ranks 8", "would it help your job?"),
        ("torchrun ... -m gradwire.run train.py", "your own script, unchanged; or gradwire.attach(model) in it"),
    ]
