"""Recorder: a sink that writes events to files without ever making training wait.

`emit` appends to a ring of bounded length; when it is full the event is dropped and counted. One thread takes events
out, encodes them and writes, at least every INTERVAL seconds. A finished segment is compressed. What goes wrong with
the disk becomes one warning, and writing is tried again later; an event that has no JSON is dropped alone. Training
never hears of either.
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

# A crash loses what came after the last write; twice in the promised second.
INTERVAL: Final = 0.5
# Events that wait for the writer: at ten a step and ten steps a second, ten minutes of a stuck disk.
CAPACITY: Final = 65_536
# Bytes of JSON after which a segment is finished: small enough to compress in one go in memory.
SEGMENT: Final = 8 << 20
# A file that nothing was written to is touched this often, in seconds: a rank in a long step lives.
BEAT: Final = 5.0
# Seconds before a disk that failed is tried again.
RETRY: Final = 10.0


@dataclass(frozen=True, slots=True)
class EventBuffer:
    """Where one rank's events go; `buckets` says whether every bucket is written down."""

    folder: Path
    rank: int
    world_size: int
    buckets: bool = False
    segment_bytes: int = SEGMENT
    capacity: int = CAPACITY


class Recorder:
    """Owns its thread and its file; `close` ends both and leaves a finished recording."""

    def __init__(
        self, tape: EventBuffer, clock: Clock, wall: Callable[[], float] = time.time, interval: float = INTERVAL
    ) -> None:
        self._tape, self._clock, self._wall, self._interval = tape, clock, wall, interval
        self._ring: deque[Event] = deque()
        self._encoder = msgspec.json.Encoder()
        self._attached: Attached | None = None
        self._dropped = self._told = 0
        self._warning: Warned | None = None
        self._silent_until = self._beaten = 0.0
        self._said: set[type[Exception]] = set()
        try:
            tape.folder.mkdir(parents=True, exist_ok=True)
            mine = [segment.number for segment in segments(tape.folder) if segment.rank == tape.rank]
            self._number = max(mine, default=-1) + 1
            self._file = _Segment(segment_path(tape.folder, tape.rank, self._number))
        except OSError as error:
            raise ConfigError(
                f"record: cannot write to {tape.folder} ({error.strerror}); name a writable directory"
            ) from error
        self._write(b"")  # the head, so that views know of the run at once
        if tape.rank == 0:
            announce(tape.folder)
        self._stop = threading.Event()
        self._void = False
        self._thread = threading.Thread(target=self._run, name="gradwire-recorder", daemon=True)
        self._thread.start()
        void_in_child(self, Recorder._in_child)

    @property
    def dropped(self) -> int:
        """Events lost so far, for want of room or of a disk."""
        return self._dropped

    def emit(self, event: Event) -> None:
        if self._void or (type(event) is Synchronised and not self._tape.buckets):
            return
        if len(self._ring) >= self._tape.capacity:
            self._dropped += 1
            return
        self._ring.append(event)

    def flush(self) -> None:
        """Write what waits, now; called by the writer, and by `close` after the writer is gone."""
        taken = [self._ring.popleft() for _ in range(len(self._ring))]
        for event in taken:
            if type(event) is Attached:
                self._attached = event
        body = self._lines(taken)
        dropped = self._dropped
        told: list[Event] = [] if self._warning is None else [self._warning]
        if dropped > self._told:
            told.append(Dropped(self._clock.now(), dropped - self._told))
        if not body and not told:
            return
        if self._write(body + self._lines(told)):
            self._told, self._warning = dropped, None
        else:
            self._dropped += body.count(b"\n")

    def close(self, timeout: float = 10.0) -> None:
        """Write everything, compress the last segment. A disk that hangs is left behind after `timeout` seconds."""
        if self._void:
            return
        self._stop.set()
        self._thread.join(timeout)
        if self._thread.is_alive():
            log.warning("the recorder's disk %s does not answer; the last events are lost", self._tape.folder)
            return
        self.flush()
        self._finish()

    def _in_child(self) -> None:
        """In a forked child: file and events are the parent's, who writes them."""
        self._void = True
        self._ring.clear()

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                self.flush()
                self._beat()
            except Exception as error:  # the top of this thread: a recorder must not end training
                self._fail(error)

    def _beat(self) -> None:
        if self._clock.now() - self._beaten >= BEAT:
            self._beaten = self._clock.now()
            os.utime(self._file.path)

    def _lines(self, events: list[Event]) -> bytes:
        """The events' JSON; one that has none, for what a user put into it, is dropped alone."""
        try:
            return self._encoder.encode_lines(events)
        except Exception as error:  # whatever encoding a stranger's value raises
            if len(events) > 1:
                half = len(events) // 2
                return self._lines(events[:half]) + self._lines(events[half:])
            self._dropped += 1
            self._warn(error)
            return b""

    def _write(self, body: bytes) -> bool:
        if self._clock.now() < self._silent_until:
            return False
        try:
            if self._file.size >= self._tape.segment_bytes:
                self._rotate()
            if self._file.size == 0:
                self._head()
            self._file.append(body)
        except Exception as error:  # the disk, or a head that has no JSON: a recorder must not end training
            self._fail(error)
            return False
        return True

    def _head(self) -> None:
        """A segment stands alone: what it is, and the configuration once that is known."""
        tape = self._tape
        opened = Opened(
            self._clock.now(), FORMAT, VERSION, tape.rank, tape.world_size, self._wall(), tape.folder.name, self._number
        )
        head: list[Event] = [opened] if self._attached is None else [opened, self._attached]
        self._file.append(self._encoder.encode_lines(head))

    def _rotate(self) -> None:
        self._finish()
        self._file = _Segment(segment_path(self._tape.folder, self._tape.rank, self._number + 1))
        self._number += 1

    def _finish(self) -> None:
        try:
            self._file.finish()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._silent_until = self._clock.now() + RETRY
        self._warn(error)

    def _warn(self, error: Exception) -> None:
        """Once for each kind of error, in the program's log and, as soon as it can be written, in the recording."""
        if type(error) not in self._said:
            self._said.add(type(error))
            message = f"recording to {self._tape.folder} failed ({error}); training goes on, events are lost meanwhile"
            log.warning(message)
            self._warning = Warned(self._clock.now(), message)


class _Segment:
    """One file being written; what was written whole stays whole."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._file = path.open("xb", buffering=0)

    def append(self, body: bytes) -> None:
        """All of `body`, or nothing of it and OSError."""
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
        """Leave the compressed form in place of the plain one; the plain one stays where that fails."""
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
