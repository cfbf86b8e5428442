"""Screen: what the demo shows while it runs and at its end. Pure: it draws what it is given."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradwire.demo.story import FAST, SLOW, Halves, bars
from gradwire.observe.verdict import Verdict

COLORS = {"good": "bold green", "even": "bold", "bad": "bold red", "open": "bold"}
NAME = 12


def progress(runs: dict[str, Halves], current: str, now: str) -> RenderableType:
    """One line for each run: its bar so far, loss and accuracy; `now` says what the current one is doing."""
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for column in ("", "steps", "training", "loss", "accuracy", ""):
        table.add_column(column, justify="left" if column == "" else "right", header_style="dim", no_wrap=True)
    for name, run in runs.items():
        here = name == current
        loss = "" if run.loss is None else f"{run.loss:.3f}"
        accuracy = "" if run.accuracy is None else f"{100 * run.accuracy:.1f} %"
        steps = f"{run.step}/{run.total}" if run.total else ""
        spent = f"{run.seconds:.0f} s" if run.total else ""
        table.add_row(
            Text(name, "bold" if here else ""), steps, spent, loss, accuracy, Text(now if here else "", "dim")
        )
    return table


def picture(runs: dict[str, Halves], width: int, changed: bool) -> RenderableType:
    """The time of each run on one scale, before and after the change of the network."""
    lines = []
    for name, before, after in bars(runs, max(10, width - NAME - 24)):
        run = runs[name]
        note = f" {run.seconds:.0f} s" + ("" if run.accuracy is None else f", {100 * run.accuracy:.1f} % correct")
        lines.append(Text.assemble(f"{name:<{NAME}}", (before, "cyan"), (after, "magenta"), note))
    halves = ((f"█ {FAST}", "cyan"), "   ", (f"▒ {SLOW}", "magenta")) if changed else ("█ first half   ▒ second half",)
    return Group(*lines, Text.assemble(" " * NAME, *halves))


def verdict(found: Verdict, against_peer: str) -> RenderableType:
    """The headline, where the time went, what changed."""
    rows = [Text(f"{found.headline}.", COLORS[found.tone])]
    rows += [Text(f"{text[0].upper()}{text[1:]}.") for text in (against_peer, found.time, found.changed) if text]
    return Group(*rows)


def doubts(load: str, problems: Sequence[str], loopback: bool) -> list[str]:
    """What a reader must know before believing the figures."""
    found = [
        f"This machine was busy: {load}. Steps took longer than the network causes; repeat the demo when it is idle."
    ]
    found = found if load else []
    found += [
        f"The emulated network did not keep up ({problem}): the figures are not reliable." for problem in problems
    ]
    if loopback:
        found.append(
            "Without root and user namespaces only TCP's rate is limited, and it cannot change half-way: a "
            "demonstration, not a measurement."
        )
    return found
