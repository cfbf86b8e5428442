"""Live: server-sent events. Each stream reports the runs that changed, at most twice a second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from gradwire.dashboard import schema
from gradwire.dashboard.library import Library

INTERVAL_SECONDS: Final = 0.5
# Intervals without a change after which a comment is sent, so that proxies keep the stream open.
QUIET_INTERVALS: Final = 20
MAX_STREAMS: Final = 32


class Live:
    """Counts streams and ends them when the server closes."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._open = 0
        self.closing = False

    @property
    def full(self) -> bool:
        return self._open >= MAX_STREAMS

    async def stream(self) -> AsyncIterator[bytes]:
        """The text of one stream. The first event is sent at once."""
        self._open += 1
        try:
            seen, quiet = None, 0
            while not self.closing:
                briefs = list_runs(self._library)
                state = [(brief.id, brief.changed, brief.live) for brief in briefs]
                if state != seen:
                    seen, quiet = state, 0
                    yield b"event: pulse\ndata: " + msgspec.json.encode(schema.RunsChanged(briefs)) + b"\n\n"
                elif (quiet := quiet + 1) >= QUIET_INTERVALS:
                    quiet = 0
                    yield b": keep-alive\n\n"
                await asyncio.sleep(INTERVAL_SECONDS)
        finally:
            self._open -= 1


def list_runs(library: Library) -> list[schema.RunBrief]:
    """A brief of every run."""
    briefs = []
    for run in library.runs.values():
        with run.lock:
            briefs.append(run.brief())
    return briefs
