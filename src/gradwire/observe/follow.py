"""Follow: the terminal view of a recording that is still being written (rich's Live calls `__rich_console__`)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult

from gradwire.observe.reader import Damage, Follower
from gradwire.observe.state import RunState
from gradwire.observe.terminal import draw

# Seconds between two reads of the files, however often the screen is drawn.
POLL_INTERVAL: Final = 0.25


class FollowedRun:
    """The view of a recording directory, updated when it is drawn; empty until the first event."""

    def __init__(self, folder: Path) -> None:
        self.state = RunState()
        self._follower = Follower(folder)
        self._polled = float("-inf")

    @property
    def damage(self) -> Damage:
        """What could not be read so far."""
        return self._follower.damage

    def poll(self) -> None:
        """Add what was written since the last poll."""
        for record in self._follower.poll():
            self.state.take(record)
        self.state.update_silence(time.time(), self._follower.touched)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        now = time.monotonic()
        if now - self._polled >= POLL_INTERVAL:
            self._polled = now
            self.poll()
        if self.state.started is not None:
            yield draw(self.state, options.max_width)
