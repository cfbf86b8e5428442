"""`gradwire watch [RUN]`: a run as it trains, in the terminal."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.live import Live

from gradwire.errors import ConfigError
from gradwire.observe.files import recording, segments
from gradwire.observe.live import Following
from gradwire.observe.words import clean

REFRESH: Final = 4
RUNS: Final = Path("runs")


@click.command("watch")
@click.argument("run", required=False)
@click.option("--once", is_flag=True, help="Print how things stand and end.")
@click.option("--no-color", is_flag=True, help="Plain characters; NO_COLOR does the same.")
def watch_command(run: str | None, once: bool, no_color: bool) -> None:
    """Follow RUN, a directory that a job records into (attach(..., record=DIR) or GRADWIRE_RECORD) or a file of it;
    the newest of runs/ unless named. Ends with the run, or with Ctrl-C."""
    folder = folder_of(Path(run)) if run else newest()
    console = Console(no_color=no_color or None)
    following = Following(folder)
    if once:
        recording(folder)  # says what is wrong where there is none
        following.look()
        if following.state.started is None:
            raise ConfigError(f"watch: no event can be read in {folder}: {following.damage or 'its files are empty'}")
        console.print(following)
    elif console.is_terminal:
        follow(console, following)
    if following.damage:
        click.echo(f"gradwire: {clean(str(following.damage))}", err=True)


def folder_of(run: Path) -> Path:
    """A file stands for the recording that it belongs to."""
    return run.parent if run.is_file() else run


def newest(runs: Path = RUNS) -> Path:
    """The recording written to last: GRADWIRE_RECORD's, or the newest directory below `runs`."""
    if named := os.environ.get("GRADWIRE_RECORD"):
        return Path(named)
    found = [folder for folder in (*runs.glob("*"), *runs.glob("*/*")) if folder.is_dir() and segments(folder)]
    if not found:
        raise ConfigError("watch: no recording below runs/; name one: gradwire watch DIR")
    return max(found, key=lambda folder: max(segment.path.stat().st_mtime for segment in segments(folder)))


def follow(console: Console, following: Following) -> None:
    """Draw until every rank said that it ended."""
    if following.state.started is None:
        console.print("[dim]waiting for events; Ctrl-C ends[/dim]")
    with Live(following, console=console, refresh_per_second=REFRESH) as live:
        while not following.state.ended:
            time.sleep(1 / REFRESH)
        live.refresh()
