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
from gradwire.lab.interrupts import Interrupts
from gradwire.observe.files import recording, segments
from gradwire.observe.follow import FollowedRun
from gradwire.observe.format import clean
from gradwire.observe.report import load, to_json
from gradwire.observe.state import RunState

REFRESH: Final = 4
RUNS: Final = Path("runs")


@click.command("watch")
@click.argument("run", required=False)
@click.option("--once", is_flag=True, help="Print how things stand and end.")
@click.option("--json", "as_json", is_flag=True, help="With --once: as JSON, in the form that report --json has.")
@click.option("--no-color", is_flag=True, help="Plain characters; NO_COLOR does the same.")
def watch_command(run: str | None, once: bool, as_json: bool, no_color: bool) -> None:
    """Follow RUN, a directory that a job records into (attach(..., record=DIR) or GRADWIRE_RECORD) or a file of it;
    the newest of runs/ unless named. Ends with the run, or with Ctrl-C; at once where the output is no terminal."""
    folder = folder_of(Path(run)) if run else newest()
    console = Console(no_color=no_color or None)
    if as_json and not once:
        raise ConfigError("watch --json: only with --once; every event as it was recorded: gradwire replay --json RUN")
    if as_json:
        recording(folder)
        click.echo(to_json(load([folder])), nl=False)
        return
    following = FollowedRun(folder)
    if once or not console.is_terminal:
        recording(folder)  # says what is wrong where there is none
        following.poll()
        if following.state.started is None:
            raise ConfigError(f"watch: no event can be read in {folder}: {following.damage or 'its files are empty'}")
        console.print(following)
    else:
        check_readable(folder)
        follow(console, following)
    if following.damage:
        click.echo(f"gradwire: {clean(str(following.damage))}", err=True)


def folder_of(run: Path) -> Path:
    """A file stands for the recording that it belongs to."""
    return run.parent if run.is_file() else run


def check_readable(folder: Path) -> None:
    """A directory that is not there yet, or empty, is waited for; one that may not be read never will be."""
    if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
        raise ConfigError(f"watch: {folder}: Permission denied; name a directory that you may read")


def newest(runs: Path = RUNS) -> Path:
    """The recording written to last: GRADWIRE_RECORD's, or the newest directory below `runs`."""
    if named := os.environ.get("GRADWIRE_RECORD"):
        return Path(named)
    found = [folder for folder in (*runs.glob("*"), *runs.glob("*/*")) if _holds_one(folder)]
    if not found:
        raise ConfigError("watch: no recording below runs/; name one: gradwire watch DIR")
    return max(found, key=lambda folder: max(segment.path.stat().st_mtime for segment in segments(folder)))


def _holds_one(folder: Path) -> bool:
    try:
        return folder.is_dir() and bool(segments(folder))
    except OSError:  # somebody else's
        return False


def follow(console: Console, following: FollowedRun) -> None:
    """Draw until the run ended or failed."""
    if following.state.started is None:
        console.print("[dim]waiting for events; Ctrl-C ends[/dim]")
    with Live(following, console=console, refresh_per_second=REFRESH) as live:
        with Interrupts() as interrupts:
            while _goes_on(following.state) and interrupts.noted is None:
                time.sleep(1 / REFRESH)
        live.refresh()


def _goes_on(state: RunState) -> bool:
    """A run that has recorded nothing yet is waited for."""
    return state.started is None or state.status in ("waiting", "running")
