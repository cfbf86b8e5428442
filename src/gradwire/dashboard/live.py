"""Live: server-sent events. Each stream says which runs changed, at most twice a second, and keeps nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from gradwire.dashboard import answers as a
from gradwire.dashboard.library import Library

BEAT_SECONDS: Final = 0.5
# A comment now and then, so that proxies and browsers see that the stream lives.
SILENT_BEATS: Final = 20
MAX_STREAMS: Final = 32


class Live:
    """Counts streams, ends them when the server closes."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._open = 0
        self.closing = False

    @property
    def full(self) -> bool:
        return self._open >= MAX_STREAMS

    async def stream(self) -> AsyncIterator[bytes]:
        """The text of one stream. The first pulse comes at once."""
        self._open += 1
        try:
            seen, silent = None, 0
            while not self.closing:
                briefs = list_runs(self._library)
                state = [(brief.id, brief.changed, brief.live) for brief in briefs]
                if state != seen:
                    seen, silent = state, 0
                    yield b"event: pulse\ndata: " + msgspec.json.encode(a.RunsChanged(briefs)) + b"\n\n"
                elif (silent := silent + 1) >= SILENT_BEATS:
                    silent = 0
                    yield b": here\n\n"
                await asyncio.sleep(BEAT_SECONDS)
        finally:
            self._open -= 1


def list_runs(library: Library) -> list[a.RunBrief]:
    """Every run in a line."""
    briefs = []
    for run in library.runs.values():
        with run.lock:
            briefs.append(run.brief())
    return briefs
