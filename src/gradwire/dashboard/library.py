"""Library: every run that the server shows, and the thread that reads their files."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gradwire.dashboard import schema
from gradwire.dashboard.run_data import MAX_MEMBERS, RunData
from gradwire.dashboard.views import MAX_NAME
from gradwire.errors import ConfigError
from gradwire.observe.files import segments
from gradwire.observe.outcome import RunOutcome, outcome_of
from gradwire.observe.reader import Follower, Record

log = logging.getLogger("gradwire.dashboard")

POLL_SECONDS: Final = 0.25
# New runs are searched less often: some hundred directories take 30 ms.
DISCOVER_SECONDS: Final = 1.0
# Records added before the lock is released, so that requests can read in between.
SLICE: Final = 500
MAX_RUNS: Final = 64
# Directories between the one named and a run's own: a demo records to runs/demo-TIME/gradwire.
LEVELS: Final = 2


@dataclass(slots=True)
class TrackedRun:
    """A run's files, its data, and the lock that protects the data."""

    id: str
    name: str
    folder: Path
    follower: Follower
    data: RunData = field(default_factory=RunData)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def brief(self) -> schema.RunBrief:
        """The caller holds the lock."""
        state = self.data.state
        return schema.RunBrief(
            id=self.id,
            name=self.name[:MAX_NAME],
            started=state.started,
            duration=state.elapsed,
            world_size=state.world_size,
            ranks=sorted(rank for rank in state.ranks if 0 <= rank < MAX_MEMBERS),
            steps=state.steps,
            live=state.status in ("waiting", "running"),
            status=state.status,
            level=state.level[:MAX_NAME],
            changed=self.data.changed,
        )

    def refresh(self, stop: threading.Event) -> None:
        """Add all new records, in slices, so that readers do not wait for all of them."""
        while (records := self.follower.poll()) and not stop.is_set():
            for first in range(0, len(records), SLICE):
                self._add(records[first : first + SLICE])
        with self.lock:
            state = self.data.state
            before = state.status
            state.update_silence(time.time(), self.follower.touched)
            self.data.changed += state.status != before

    def _add(self, records: Sequence[Record]) -> None:
        with self.lock:
            for record in records:
                self.data.take(record)


class Library:
    """Runs by id, and the thread that reads; `close` joins it."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self.runs: dict[str, TrackedRun] = {}
        # Runs that are not shown, because there are MAX_RUNS newer ones.
        self.left_out = 0
        self._written: dict[Path, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, name="gradwire-dashboard", daemon=True)
        for path in self._paths:
            _check(path)
        self._discover()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop reading and join the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def outcome(self, run: str | None) -> RunOutcome | None:
        """What a run is compared by; None if there is no such run."""
        found = self.runs.get(run or "")
        if found is None:
            return None
        with found.lock:
            return outcome_of(found.name, found.data.state)

    def _discover(self) -> None:
        """Add new runs and remove the oldest beyond MAX_RUNS. A run's age is read once, when it is found."""
        found = {folder: name for path in self._paths for folder, name in folders_of(path).items()}
        new = [folder for folder in found if folder not in self._written]
        if not new:
            return
        self._written |= {folder: _written(folder) for folder in new}
        newest = set(heapq.nlargest(MAX_RUNS, self._written, key=self._written.__getitem__))
        shown = {identity: run for identity, run in self.runs.items() if run.folder in newest}
        for folder in (folder for folder in new if folder in newest):
            identity = _identity(found[folder], shown)
            shown[identity] = TrackedRun(identity, found[folder], folder, Follower(folder))
        left_out = len(self._written) - len(shown)
        if left_out and not self.left_out:
            log.warning("only the newest %d runs are shown; name the directories of the others to see them", MAX_RUNS)
        # A new dictionary each time: requests read it from another thread. The newest run comes first.
        age = sorted(shown.items(), key=lambda item: self._written[item[1].folder], reverse=True)
        self.runs, self.left_out = dict(age), left_out

    def _read(self) -> None:
        discovered = float("-inf")
        while not self._stop.is_set():
            if time.monotonic() - discovered >= DISCOVER_SECONDS:
                self._discover()
                discovered = time.monotonic()
            for run in self.runs.values():
                self._refresh(run)
            self._stop.wait(POLL_SECONDS)

    def _refresh(self, run: TrackedRun) -> None:
        """The top of the reading thread: one run that cannot be read must not stop the others."""
        try:
            run.refresh(self._stop)
        except Exception as error:
            with run.lock:
                run.follower.damage.note(f"reading stopped: {type(error).__name__}: {error}")


def folders_of(path: Path) -> dict[Path, str]:
    """Run directories and their names. A directory with event files is a run, others are searched; a file stands for
    its directory."""
    try:
        folder = path.resolve().parent if path.is_file() else path.resolve()
    except OSError:
        return {}
    return {run: run.name if run == folder else str(run.relative_to(folder)) for run in _runs_below(folder, LEVELS)}


def _runs_below(folder: Path, levels: int) -> list[Path]:
    try:
        if not folder.is_dir():
            return []
        if segments(folder):
            return [folder]
        children = sorted(folder.iterdir()) if levels else []
    except OSError:  # removed meanwhile, or not readable
        return []
    return [run for child in children for run in _runs_below(child, levels - 1)]


def _check(path: Path) -> None:
    """ConfigError if a given directory does not exist or cannot be read."""
    try:
        there = path.exists()
        if path.is_dir():
            segments(path)
    except OSError as error:
        raise ConfigError(f"dashboard: cannot read {path} ({error.strerror}); name a readable directory") from error
    if not there:
        raise ConfigError(f"dashboard: {path} does not exist; record with attach(..., record=DIR)")


def _written(folder: Path) -> float:
    """When its last file was created or finished."""
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def _identity(name: str, taken: Container[str]) -> str:
    stem = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name)[:60] or "run"
    names = (stem if number == 1 else f"{stem}-{number}" for number in range(1, MAX_RUNS + 2))
    return next(name for name in names if name not in taken)
