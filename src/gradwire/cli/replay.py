"""`gradwire replay RUN`: replays a recording in any view and at any speed, or exports Parquet tables."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import msgspec
from rich.console import Console
from rich.live import Live

from gradwire.errors import ConfigError
from gradwire.events import Decided, Failed, Faulted, NonFinite, Noted, Planned, Warned
from gradwire.observe.format import clean, span
from gradwire.observe.reader import Damage, Record, read
from gradwire.observe.state import RunState
from gradwire.observe.terminal import draw

VIEWS: Final = ("watch", "log", "summary", "json")
FRAME: Final = 0.1


@click.command("replay")
@click.argument("run")
@click.option("--view", type=click.Choice(VIEWS), default="watch", show_default=True, help="json: one record per line.")
@click.option("--speed", type=click.FloatRange(0), default=10.0, show_default=True, help="Speed factor; 0: no waiting.")
@click.option("--parquet", metavar="DIR", help="Write tables into DIR instead, one per kind of event.")
@click.option("--json", "as_json", is_flag=True, help="Same as --view json.")
@click.option("--no-color", is_flag=True, help="No colours; same as NO_COLOR.")
def replay_command(run: str, view: str, speed: float, parquet: str | None, as_json: bool, no_color: bool) -> None:
    """Replay RUN: a recording directory, or one of its files. If the output is not a terminal, the view `watch` prints
    the end of the run."""
    view = "json" if as_json else view
    damage = Damage()
    records = read(run, damage)
    if parquet is not None:
        _export(records, Path(parquet))
    elif view == "watch":
        _watch(records, speed, Console(no_color=no_color or None))
    elif view == "summary":
        state = state_of(records)
        Console(no_color=no_color or None).print(draw(state))
    else:
        show = _json if view == "json" else _log
        for line in show(paced(records, speed if view == "log" else 0)):
            click.echo(line)
    if damage:
        click.echo(f"gradwire: {clean(str(damage))}", err=True)


def state_of(records: Iterator[Record]) -> RunState:
    state = RunState()
    for record in records:
        state.take(record)
    return state


def paced(records: Iterator[Record], speed: float) -> Iterator[Record]:
    """The records at `speed` times their own pace; without waiting if it is 0."""
    start, first = time.monotonic(), None
    for record in records:
        first = record.time if first is None else first
        if speed:
            early = (record.time - first) / speed - (time.monotonic() - start)
            if early > 0:
                time.sleep(early)
        yield record


def _watch(records: Iterator[Record], speed: float, console: Console) -> None:
    state = RunState()
    if not console.is_terminal:
        console.print(draw(state_of(records)))
        return
    drawn = float("-inf")
    with Live(console=console, auto_refresh=False) as live:
        for record in paced(records, speed):
            state.take(record)
            now = time.monotonic()
            if now - drawn >= FRAME:
                drawn = now
                live.update(draw(state, console.width), refresh=True)
        live.update(draw(state, console.width), refresh=True)


def _json(records: Iterator[Record]) -> Iterator[str]:
    encoder = msgspec.json.Encoder()
    for rank, at, event in records:
        yield encoder.encode({"rank": rank, "time": at, **msgspec.to_builtins(event, str_keys=True)}).decode()


def _log(records: Iterator[Record]) -> Iterator[str]:
    """Decisions, plans, faults and accuracies, one sentence each."""
    start: float | None = None
    for rank, at, event in records:
        start = at if start is None else start
        sentence = _sentence(event, rank)
        if sentence:
            yield clean(f"{span(at - start):>12}  {sentence}")


def _sentence(event: object, rank: int) -> str:  # noqa: PLR0911 - one sentence for each kind of event
    match event:
        case Decided(bucket=0) if rank == 0:
            return f"step {event.step}: {event.level}: {event.reason}"
        case Planned():
            return f"step {event.step}: plan {event.version} by {event.planner}: {event.reason}"
        case Faulted():
            return f"step {event.step}: rank {rank}: {event.kind}: {event.detail}"
        case Failed():
            return f"step {event.step}: rank {rank} failed: {event.error}"
        case NonFinite():
            return f"step {event.step}: rank {rank}: {event.elements} elements were NaN or infinite"
        case Warned():
            return f"rank {rank}: {event.message}"
        case Noted(accuracy=accuracy) if accuracy is not None and rank == 0:
            return f"step {event.step}: accuracy {accuracy:.4f}"
    return ""


def _export(records: Iterator[Record], folder: Path) -> None:
    try:
        from gradwire.observe.parquet import export
    except ImportError as error:
        raise ConfigError("replay --parquet: pyarrow is not installed; run pip install 'gradwire[parquet]'") from error
    try:
        tables = export(records, folder)
    except OSError as error:
        raise ConfigError(
            f"replay --parquet: cannot write into {folder} ({error.strerror or error}); name another directory"
        ) from error
    for path, rows in tables.items():
        click.echo(f"{path}: {rows} rows")
