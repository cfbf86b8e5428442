"""Source: the event files of one run, read from where reading stopped.

A run is a directory of JSON-lines files (or one such file). Each begins with `Opened`, which says whose it is and which
segment of that rank's record; segments are read in order. A segment that is compressed after it was rotated is the same
segment. Files are hostile until read: lines are bounded, numbers finite, unknown events skipped, damage is reported.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, cast

import msgspec

from gradwire.events import FORMAT, VERSION, Event, Opened

# A plan of 256 members with nine trees is about 100 kB; nothing else comes near.
MAX_LINE: Final = 1 << 20
SUFFIXES: Final = (".jsonl", ".jsonl.gz", ".jsonl.zst")
_decoder = msgspec.json.Decoder(Event)


class Damage(msgspec.Struct, frozen=True):
    """Something in a file that could not be read."""

    rank: int
    kind: str
    detail: str


@dataclass(slots=True)
class Tape:
    """One segment of one rank's record; `offset` is how many of its (decompressed) bytes were read."""

    opened: Opened
    path: Path
    offset: int = 0
    broken: int = 0
    finished: bool = False


@dataclass(slots=True)
class Source:
    """`poll` yields what is new, as (rank, event); times are still each rank's own."""

    path: Path
    tapes: dict[tuple[int, int], Tape] = field(default_factory=dict)
    _refused: set[Path] = field(default_factory=set)
    _seen: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def discover(self) -> Iterator[Damage]:
        """Look for new segments; yield what is wrong with files that are none."""
        for path in files_of(self.path):
            if path in self._refused or path in self._seen:
                continue
            try:
                opened = read_opened(path)
            except ValueError as error:
                self._refused.add(path)
                yield Damage(0, "unreadable", f"{path.name}: {error}")
                continue
            if opened is None:
                continue  # nothing written yet
            key = (opened.rank, opened.segment)
            self._seen[path] = key
            tape = self.tapes.setdefault(key, Tape(opened, path))
            tape.path = path

    def poll(self) -> Iterator[tuple[int, Event] | Damage]:
        """Everything new since the last call, rank by rank."""
        yield from self.discover()
        for (rank, _), tape in sorted(self.tapes.items()):
            for found in _advance(tape):
                yield found if isinstance(found, Damage) else (rank, found)


def files_of(path: Path) -> list[Path]:
    """The event files of a run, by name."""
    if path.is_file():
        return [path]
    return sorted(found for found in path.iterdir() if found.name.endswith(SUFFIXES) and found.is_file())


def read_opened(path: Path) -> Opened | None:
    """A file's first line; None while there is no whole one. ValueError says why a file is none of ours."""
    try:
        with _open(path) as file:
            line = file.readline(MAX_LINE)
    except (OSError, EOFError, RuntimeError) as error:
        raise ValueError(f"cannot be read: {error}") from error
    if not line.endswith(b"\n"):
        if len(line) >= MAX_LINE:
            raise ValueError("not an event file: its first line has no end")
        return None
    try:
        event = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not an event file: {error}") from error
    if not isinstance(event, Opened) or event.format != FORMAT:
        raise ValueError("not an event file: it does not begin with `opened`")
    if event.version > VERSION:
        raise ValueError(f"written by a newer gradwire: schema {event.version}, this one reads {VERSION}")
    if event.rank < 0 or not math.isfinite(event.wall) or not math.isfinite(event.at):
        raise ValueError("its first line makes no sense: rank or time is not a number it could be")
    return event


def _open(path: Path) -> IO[bytes]:
    if path.name.endswith(".gz"):
        return cast(IO[bytes], gzip.open(path, "rb"))
    if path.name.endswith(".zst"):
        return _open_zstd(path)
    return path.open("rb")


def _open_zstd(path: Path) -> IO[bytes]:
    try:
        from compression import zstd  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        from backports import zstd
    return cast(IO[bytes], zstd.open(path, "rb"))


def _advance(tape: Tape) -> Iterator[Event | Damage]:
    """Whole lines after `offset`. A last line without an end is left for the next time."""
    if tape.finished:
        return
    compressed = not tape.path.name.endswith(".jsonl")
    try:
        if not compressed and tape.path.stat().st_size <= tape.offset:
            return
        with _open(tape.path) as file:
            file.seek(tape.offset)
            while line := file.readline(MAX_LINE):
                if not line.endswith(b"\n") and len(line) < MAX_LINE:
                    break
                tape.offset += len(line)
                yield from _decoded(tape, line)
        tape.finished = compressed
    except FileNotFoundError:
        return  # rotated away between looking and opening; its successor is found by the next poll
    except (OSError, EOFError, RuntimeError) as error:
        tape.finished = True
        yield Damage(tape.opened.rank, "damaged", f"{tape.path.name}: {error}")


def _decoded(tape: Tape, line: bytes) -> Iterator[Event | Damage]:
    try:
        event = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if b"Invalid value" in str(error).encode() and "event" in str(error):
            return  # an event this version does not know
        tape.broken += 1
        yield Damage(tape.opened.rank, "damaged", f"{tape.path.name}: a line could not be read")
        return
    yield event
