"""Library: every run the server shows, and the one thread that keeps reading their files."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gradwire.dashboard import answers as a
from gradwire.dashboard.book import Book
from gradwire.dashboard.source import Damage, Source, files_of
from gradwire.dashboard.views import SILENCE, steps
from gradwire.errors import ConfigError
from gradwire.events import Event, Opened

POLL_SECONDS: Final = 0.25
# Events folded between two chances for a request to read the book.
SLICE: Final = 500
MAX_RUNS: Final = 64
# No run is longer than this, in seconds (ten years): a later event is damage, not data.
LONGEST: Final = 3.2e8


@dataclass(slots=True)
class Run:
    """A run's files, its book, and the lock under which the book is read and written."""

    id: str
    name: str
    source: Source
    book: Book = field(default_factory=Book)
    lock: threading.Lock = field(default_factory=threading.Lock)
    started: float | None = None
    heard: float = float("-inf")
    _offsets: dict[int, float] = field(default_factory=dict)

    def brief(self) -> a.RunBrief:
        """Whoever calls holds the lock."""
        book = self.book
        live = not book.ended and time.time() - self.heard < SILENCE
        level = book.decisions[-1].event.level[:80] if book.decisions else "off"
        ranks = sorted(book.ranks)
        return a.RunBrief(
            self.id,
            self.name,
            self.started,
            book.duration,
            book.world_size,
            ranks,
            steps(book),
            live,
            level,
            book.changed,
        )

    def refresh(self, stop: threading.Event) -> None:
        """Fold in what is new, in slices, so that readers need not wait for all of it."""
        batch: list[tuple[int, Event] | Damage] = []
        for found in self.source.poll():
            batch.append(found)
            if len(batch) >= SLICE:
                self._fold(batch)
                batch.clear()
                if stop.is_set():
                    return
        self._fold(batch)

    def _fold(self, batch: Sequence[tuple[int, Event] | Damage]) -> None:
        with self.lock:
            for found in batch:
                if isinstance(found, Damage):
                    self.book.warn(found.rank, found.kind, found.detail)
                else:
                    self._take(*found)

    def _take(self, rank: int, event: Event) -> None:
        """Place an event on the run's clock: seconds since the first of its files was opened."""
        if self.started is None:
            self.started = min(tape.opened.wall for tape in self.source.tapes.values())
        if isinstance(event, Opened):
            self._offsets[rank] = event.wall - event.at - self.started
        at = event.at + self._offsets.get(rank, 0.0)
        if not at < LONGEST:
            self.book.warn(rank, "damaged", f"an event of rank {rank} has an impossible time")
            return
        self.heard = max(self.heard, self.started + at)
        self.book.take(rank, max(0.0, at), event)


class Library:
    """Runs by id, and the thread that reads; `close` joins it."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self.runs: dict[str, Run] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, name="gradwire-dashboard", daemon=True)
        self._discover()
        if not self.runs:
            where = ", ".join(map(str, paths))
            raise ConfigError(
                f"dashboard: no recorded run in {where}; give a directory with *.jsonl event files, or one such file"
            )

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop reading; returns when the thread is gone."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def _discover(self) -> None:
        for path in self._paths:
            for place in places_of(path):
                name = place.name.removesuffix(".jsonl")
                if len(self.runs) < MAX_RUNS and all(run.source.path != place for run in self.runs.values()):
                    self._add(place, name)

    def _add(self, place: Path, name: str) -> None:
        stem = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name)[:60] or "run"
        identity, number = stem, 2
        while identity in self.runs:
            identity, number = f"{stem}-{number}", number + 1
        # A new dictionary each time: requests read it from another thread.
        self.runs = self.runs | {identity: Run(identity, name[:120], Source(place))}

    def _read(self) -> None:
        while not self._stop.is_set():
            self._discover()
            for run in self.runs.values():
                self._refresh(run)
            self._stop.wait(POLL_SECONDS)

    def _refresh(self, run: Run) -> None:
        """The top of the reading thread: one run that cannot be read must not stop the others."""
        try:
            run.refresh(self._stop)
        except Exception as error:
            with run.lock:
                run.book.warn(0, "unreadable", f"{type(error).__name__}: {error}")


def places_of(path: Path) -> list[Path]:
    """A file or a directory of event files is a run; a directory of such directories is several."""
    if not path.exists():
        raise ConfigError(f"dashboard: there is no {path}")
    if path.is_file() or files_of(path):
        return [path.resolve()]
    return [child.resolve() for child in sorted(path.iterdir()) if child.is_dir() and files_of(child)]
