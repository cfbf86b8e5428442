"""Lab live: prints the lab's lines and, on a terminal, a live view of gradwire in the running command below them.

GRADWIRE_RECORD makes the command record, unless it is already set; a script that chooses its own directory (`record=`)
announces it, and the view follows. A command that does not attach gradwire records nothing and has no view.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import click
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from gradwire.observe.announcement import VARIABLE, announced
from gradwire.observe.files import segments
from gradwire.observe.follow import FollowedRun


def note(text: str) -> None:
    click.echo(click.style(f"lab | {text}", dim=True), err=True)


class RecordingView:
    """Draws the recording in `folder`, or in the directory that the job announces in `file`."""

    def __init__(self, folder: Path, file: Path) -> None:
        self.folder = folder
        self._file = file
        self._following = FollowedRun(folder)

    def poll(self) -> None:
        """Follow another directory if one was announced."""
        found = announced(self._file)
        if found is not None and found != self.folder:
            self.folder, self._following = found, FollowedRun(found)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.poll()
        yield self._following


class LabView:
    """Prints lines above a live view; only lines if the output is not a terminal."""

    def __init__(self, *, shown: bool) -> None:
        self._live: Live | None = None
        self._view: RecordingView | None = None
        self._announcements = ""
        if shown and sys.stdout.isatty() and sys.stderr.isatty():
            named = os.environ.get("GRADWIRE_RECORD") or time.strftime("runs/lab-%Y%m%d-%H%M%S")
            self._announcements = tempfile.mkdtemp(prefix="gradwire-lab-")
            self._view = RecordingView(Path(named).resolve(), self._file)
            self._live = Live(self._view, console=Console(stderr=True), refresh_per_second=4)

    @property
    def _file(self) -> Path:
        return Path(self._announcements) / "recording"

    @property
    def environment(self) -> dict[str, str]:
        """Variables that the view needs in the command's environment."""
        if self._view is None:
            return {}
        return {"GRADWIRE_RECORD": str(self._view.folder), VARIABLE: str(self._file)}

    def note(self, text: str) -> None:
        if self._live is None:
            note(text)
        else:
            self._live.console.print(Text(f"lab | {text}", "dim"))

    def line(self, text: str, *, err: bool) -> None:
        if self._live is None:
            click.echo(text, err=err)
        else:
            # Not soft_wrap: it would also leave the view's own lines unwrapped, and rich would miscount them.
            self._live.console.print(Text.from_ansi(text), overflow="fold")

    def report_recording(self) -> None:
        """Print the recording's directory, if the command made one."""
        folder = None if self._view is None else self._view.folder
        if folder is not None and folder.is_dir() and segments(folder):
            note(f"recorded in {folder}; for a report run: gradwire report {folder}")

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        if self._view is not None:
            self._view.poll()
            shutil.rmtree(self._announcements, ignore_errors=True)
