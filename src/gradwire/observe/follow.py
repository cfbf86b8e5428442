"""Live: a recording that grows, drawn again and again by whoever draws (rich's Live calls `__rich_console__`)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult

from gradwire.observe.reader import Damage, Follower
from gradwire.observe.state import RunState
from gradwire.observe.terminal import draw

# Files are looked at this often, however often the screen is drawn.
LOOK: Final = 0.25


class FollowedRun:
    """The view of a recording directory, up to date whenever it is drawn; empty until there is an event."""

    def __init__(self, folder: Path) -> None:
        self.state = RunState()
        self._follower = Follower(folder)
        self._looked = float("-inf")

    @property
    def damage(self) -> Damage:
        """What could not be read so far."""
        return self._follower.damage

    def look(self) -> None:
        """Take in what was written since the last look."""
        for record in self._follower.poll():
            self.state.take(record)
        self.state.heard(time.time(), self._follower.touched)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        now = time.monotonic()
        if now - self._looked >= LOOK:
            self._looked = now
            self.look()
        if self.state.started is not None:
            yield draw(self.state, options.max_width)
