"""LabView: the lab's lines, and below them, on a terminal, what gradwire does in the command that runs.

The command is told to record (GRADWIRE_RECORD) unless it was told already; a command that never attaches gradwire
records nothing, and nothing is drawn.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from gradwire.observe.files import segments
from gradwire.observe.live import Following


def note(text: str) -> None:
    click.echo(click.style(f"lab | {text}", dim=True), err=True)


class LabView:
    """Prints lines above a live view; only lines where output is no terminal."""

    def __init__(self, *, shown: bool) -> None:
        self._live: Live | None = None
        self._folder: Path | None = None
        if shown and sys.stdout.isatty() and sys.stderr.isatty():
            named = os.environ.get("GRADWIRE_RECORD") or time.strftime("runs/lab-%Y%m%d-%H%M%S")
            self._folder = Path(named).resolve()
            console = Console(stderr=True)
            self._live = Live(Following(self._folder), console=console, refresh_per_second=4)

    @property
    def environment(self) -> dict[str, str]:
        """What the command's environment needs for the view."""
        return {} if self._folder is None else {"GRADWIRE_RECORD": str(self._folder)}

    def note(self, text: str) -> None:
        if self._live is None:
            note(text)
        else:
            self._live.console.print(Text(f"lab | {text}", "dim"))

    def line(self, text: str, *, err: bool) -> None:
        if self._live is None:
            click.echo(text, err=err)
        else:
            # Not soft_wrap: it would leave the view's own lines unwrapped too, and rich would lose count of them.
            self._live.console.print(Text.from_ansi(text), overflow="fold")

    def tell(self) -> None:
        """Where the recording is, if the command made one."""
        if self._folder is not None and self._folder.is_dir() and segments(self._folder):
            note(f"recorded in {self._folder}; gradwire report {self._folder} writes a page about it")

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
