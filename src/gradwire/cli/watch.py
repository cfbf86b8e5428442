"""`gradwire watch [RUN]`: follows a run in the terminal."""

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
@click.option("--once", is_flag=True, help="Print the current state and exit.")
@click.option("--json", "as_json", is_flag=True, help="With --once: JSON in the format of report --json.")
@click.option("--no-color", is_flag=True, help="No colours; same as NO_COLOR.")
def watch_command(run: str | None, once: bool, as_json: bool, no_color: bool) -> None:
    """Follow RUN, a directory that a job records into (attach(..., record=DIR) or GRADWIRE_RECORD) or one of its files;
    default: the newest in runs/. Ends with the run or with Ctrl-C; if the output is not a terminal, prints once."""
    folder = folder_of(Path(run)) if run else newest()
    console = Console(no_color=no_color or None)
    if as_json and not once:
        raise ConfigError("watch --json: only works with --once; for all events use gradwire replay --json RUN")
    if as_json:
        recording(folder)
        click.echo(to_json(load([folder])), nl=False)
        return
    following = FollowedRun(folder)
    if once or not console.is_terminal:
        recording(folder)  # ConfigError if there is none
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
    """The recording directory of a directory or file."""
    return run.parent if run.is_file() else run


def check_readable(folder: Path) -> None:
    """ConfigError for a directory that is not readable; one that is missing or empty is waited for."""
    if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
        raise ConfigError(f"watch: {folder}: Permission denied; name a readable directory")


def newest(runs: Path = RUNS) -> Path:
    """GRADWIRE_RECORD's directory, or the recording below `runs` that was written last."""
    if named := os.environ.get("GRADWIRE_RECORD"):
        return Path(named)
    found = [folder for folder in (*runs.glob("*"), *runs.glob("*/*")) if _has_recording(folder)]
    if not found:
        raise ConfigError("watch: no recording in runs/; name one: gradwire watch DIR")
    return max(found, key=lambda folder: max(segment.path.stat().st_mtime for segment in segments(folder)))


def _has_recording(folder: Path) -> bool:
    try:
        return folder.is_dir() and bool(segments(folder))
    except OSError:  # not readable
        return False


def follow(console: Console, following: FollowedRun) -> None:
    """Draw until the run has ended or failed."""
    if following.state.started is None:
        console.print("[dim]waiting for events; press Ctrl-C to exit[/dim]")
    with Live(following, console=console, refresh_per_second=REFRESH) as live:
        with Interrupts() as interrupts:
            while _continues(following.state) and interrupts.noted is None:
                time.sleep(1 / REFRESH)
        live.refresh()


def _continues(state: RunState) -> bool:
    """Whether to continue: the run has recorded nothing yet, or is running."""
    return state.started is None or state.status in ("waiting", "running")
