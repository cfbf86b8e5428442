"""Library: every run the server shows, and the one thread that keeps reading their files."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gradwire.dashboard import answers as a
from gradwire.dashboard.book import MAX_MEMBERS, Book
from gradwire.dashboard.views import MAX_NAME
from gradwire.errors import ConfigError
from gradwire.observe.files import segments
from gradwire.observe.reader import Follower, Record

POLL_SECONDS: Final = 0.25
# Records folded between two chances for a request to read the book.
SLICE: Final = 500
MAX_RUNS: Final = 64
# A run that did not say it ended counts as over after this long without a record, in seconds.
SILENCE: Final = 15.0


@dataclass(slots=True)
class Run:
    """A run's files, its book, and the lock under which the book is read and written."""

    id: str
    folder: Path
    follower: Follower
    book: Book = field(default_factory=Book)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def brief(self) -> a.RunBrief:
        """Whoever calls holds the lock."""
        state = self.book.state
        return a.RunBrief(
            id=self.id,
            name=self.folder.name[:MAX_NAME],
            started=state.started,
            duration=state.elapsed,
            world_size=state.world_size,
            ranks=sorted(rank for rank in state.ranks if 0 <= rank < MAX_MEMBERS),
            steps=state.steps,
            live=not state.ended and time.time() - state.time < SILENCE,
            level=state.level[:MAX_NAME],
            changed=self.book.changed,
        )

    def refresh(self, stop: threading.Event) -> None:
        """Fold in all that is new, in slices, so that readers need not wait for all of it."""
        while (records := self.follower.poll()) and not stop.is_set():
            for first in range(0, len(records), SLICE):
                self._fold(records[first : first + SLICE])

    def _fold(self, records: Sequence[Record]) -> None:
        with self.lock:
            for record in records:
                self.book.take(record)


class Library:
    """Runs by id, and the thread that reads; `close` joins it."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self.runs: dict[str, Run] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, name="gradwire-dashboard", daemon=True)
        for path in self._paths:
            if not path.exists():
                raise ConfigError(f"dashboard: there is no {path}; record with attach(..., record=DIR)")
        self._discover()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop reading; returns when the thread is gone."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def _discover(self) -> None:
        known = {run.folder for run in self.runs.values()}
        for folder in (folder for path in self._paths for folder in folders_of(path)):
            if folder not in known and len(self.runs) < MAX_RUNS:
                known.add(folder)
                identity = self._identity(folder.name)
                # A new dictionary each time: requests read it from another thread.
                self.runs = self.runs | {identity: Run(identity, folder, Follower(folder))}

    def _identity(self, name: str) -> str:
        stem = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name)[:60] or "run"
        names = (stem if number == 1 else f"{stem}-{number}" for number in range(1, MAX_RUNS + 2))
        return next(name for name in names if name not in self.runs)

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
                run.follower.damage.note(f"reading stopped: {type(error).__name__}: {error}")


def folders_of(path: Path) -> list[Path]:
    """A directory with event files is a run, one of such directories several; a file stands for its directory."""
    folder = path.resolve() if path.is_dir() else path.resolve().parent
    if not folder.is_dir():
        return []
    if segments(folder):
        return [folder]
    return [child for child in sorted(folder.iterdir()) if child.is_dir() and segments(child)]
