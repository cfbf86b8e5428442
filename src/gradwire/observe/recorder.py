"""Recorder: a sink that writes events to files and never makes training wait.

`emit` appends to a bounded buffer; when it is full, the event is dropped and counted. One thread encodes and writes
events every INTERVAL seconds and compresses finished segments. A disk error becomes one warning and writing is tried
again later; an event that cannot be encoded as JSON is dropped alone. Neither reaches the training thread.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from gradwire.clock import Clock
from gradwire.errors import ConfigError
from gradwire.events import FORMAT, VERSION, Attached, Dropped, Event, Opened, Synchronised, Warned
from gradwire.fork import void_in_child
from gradwire.observe.announcement import announce
from gradwire.observe.files import PACKED, PLAIN, pack, segment_path, segments

log = logging.getLogger("gradwire.recorder")

# Seconds between writes. A crash loses what came after the last one; the documentation promises at most a second.
INTERVAL: Final = 0.5
# Events that wait for the writer: ten minutes of a stuck disk at ten events a step and ten steps a second.
CAPACITY: Final = 65_536
# Bytes of JSON after which a segment is finished: small enough to compress in memory in one call.
SEGMENT: Final = 8 << 20
# Seconds after which an unchanged file is touched, so that views know that a rank in a long step is alive.
TOUCH_INTERVAL: Final = 5.0
# Seconds before writing is tried again after a disk error.
RETRY: Final = 10.0


@dataclass(frozen=True, slots=True)
class RecorderConfig:
    """Where one rank's events go; `buckets` says whether an event per bucket is written."""

    folder: Path
    rank: int
    world_size: int
    buckets: bool = False
    segment_bytes: int = SEGMENT
    capacity: int = CAPACITY


class Recorder:
    """Owns its thread and its file; `close` ends both and finishes the recording."""

    def __init__(
        self, config: RecorderConfig, clock: Clock, wall: Callable[[], float] = time.time, interval: float = INTERVAL
    ) -> None:
        self._config, self._clock, self._wall, self._interval = config, clock, wall, interval
        self._buffer: deque[Event] = deque()
        self._encoder = msgspec.json.Encoder()
        self._attached: Attached | None = None
        self._dropped = self._reported = 0
        self._warning: Warned | None = None
        self._retry_at = self._touched = 0.0
        self._warned: set[type[Exception]] = set()
        try:
            config.folder.mkdir(parents=True, exist_ok=True)
            mine = [segment.number for segment in segments(config.folder) if segment.rank == config.rank]
            self._number = max(mine, default=-1) + 1
            self._file = _Segment(segment_path(config.folder, config.rank, self._number))
        except OSError as error:
            raise ConfigError(
                f"record: cannot write to {config.folder} ({error.strerror}); name a writable directory"
            ) from error
        self._write(b"")  # the head, so that views find the run at once
        if config.rank == 0:
            announce(config.folder)
        self._stop = threading.Event()
        self._forked = False
        self._thread = threading.Thread(target=self._run, name="gradwire-recorder", daemon=True)
        self._thread.start()
        void_in_child(self, Recorder._in_child)

    @property
    def dropped(self) -> int:
        """Events lost so far because the buffer was full or the disk failed."""
        return self._dropped

    def emit(self, event: Event) -> None:
        if self._forked or (type(event) is Synchronised and not self._config.buckets):
            return
        if len(self._buffer) >= self._config.capacity:
            self._dropped += 1
            return
        self._buffer.append(event)

    def flush(self) -> None:
        """Write the buffered events. Called by the writer thread, and by `close` after that thread has ended."""
        taken = [self._buffer.popleft() for _ in range(len(self._buffer))]
        for event in taken:
            if type(event) is Attached:
                self._attached = event
        body = self._lines(taken)
        dropped = self._dropped
        own: list[Event] = [] if self._warning is None else [self._warning]
        if dropped > self._reported:
            own.append(Dropped(self._clock.now(), dropped - self._reported))
        if not body and not own:
            return
        if self._write(body + self._lines(own)):
            self._reported, self._warning = dropped, None
        else:
            self._dropped += body.count(b"\n")

    def close(self, timeout: float = 10.0) -> None:
        """Write everything and compress the last segment. After `timeout` seconds it gives up on a disk that hangs."""
        if self._forked:
            return
        self._stop.set()
        self._thread.join(timeout)
        if self._thread.is_alive():
            log.warning("recorder: %s did not respond for %g s; the last events are lost", self._config.folder, timeout)
            return
        self.flush()
        self._finish()

    def _in_child(self) -> None:
        """In a forked child: the file and the events belong to the parent, which writes them."""
        self._forked = True
        self._buffer.clear()

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                self.flush()
                self._touch()
            except Exception as error:  # the top of this thread: a recorder must not stop training
                self._fail(error)

    def _touch(self) -> None:
        if self._clock.now() - self._touched >= TOUCH_INTERVAL:
            self._touched = self._clock.now()
            os.utime(self._file.path)

    def _lines(self, events: list[Event]) -> bytes:
        """The events as JSON lines. An event that cannot be encoded, because of a user's value, is dropped alone."""
        try:
            return self._encoder.encode_lines(events)
        except Exception as error:  # a user's value may raise anything
            if len(events) > 1:
                half = len(events) // 2
                return self._lines(events[:half]) + self._lines(events[half:])
            self._dropped += 1
            self._warn(error)
            return b""

    def _write(self, body: bytes) -> bool:
        if self._clock.now() < self._retry_at:
            return False
        try:
            if self._file.size >= self._config.segment_bytes:
                self._rotate()
            if self._file.size == 0:
                self._head()
            self._file.append(body)
        except Exception as error:  # the disk, or a head that cannot be encoded: a recorder must not stop training
            self._fail(error)
            return False
        return True

    def _head(self) -> None:
        """Begin a segment with `opened`, and `attached` once it is known, so that it can be read alone."""
        config = self._config
        opened = Opened(
            self._clock.now(),
            FORMAT,
            VERSION,
            config.rank,
            config.world_size,
            self._wall(),
            config.folder.name,
            self._number,
        )
        head: list[Event] = [opened] if self._attached is None else [opened, self._attached]
        self._file.append(self._encoder.encode_lines(head))

    def _rotate(self) -> None:
        self._finish()
        self._file = _Segment(segment_path(self._config.folder, self._config.rank, self._number + 1))
        self._number += 1

    def _finish(self) -> None:
        try:
            self._file.finish()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._retry_at = self._clock.now() + RETRY
        self._warn(error)

    def _warn(self, error: Exception) -> None:
        """Warn once for each type of error, in the log and, when writing succeeds again, in the recording."""
        if type(error) not in self._warned:
            self._warned.add(type(error))
            message = f"recording to {self._config.folder} failed ({error}); training continues, events are lost"
            log.warning(message)
            self._warning = Warned(self._clock.now(), message)


class _Segment:
    """One file being written; complete lines stay complete."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._file = path.open("xb", buffering=0)

    def append(self, body: bytes) -> None:
        """Write all of `body`; on OSError nothing of it."""
        rest = memoryview(body)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._file.truncate(self.size)
            self._file.seek(self.size)
            raise
        self.size += len(body)

    def finish(self) -> None:
        """Replace the plain file by a compressed one; keep the plain file if that fails."""
        if self._file.closed:
            return
        self._file.close()
        packed = self.path.with_name(self.path.name.removesuffix(PLAIN) + PACKED)
        partial = packed.with_name(packed.name + ".part")
        try:
            partial.write_bytes(pack(self.path.read_bytes()))
            partial.rename(packed)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        self.path.unlink()
