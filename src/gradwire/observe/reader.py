"""Reader: reads recordings and yields records (rank, time, event). Files are not trusted.

Reading ends whatever a file contains: damaged, truncated or overlong lines and unknown events are counted and skipped.
A file that is not a recording, or has a newer schema, is a ConfigError if it is the only file, and a note otherwise.
`time` is Unix seconds by the rank's own wall clock; a missing time is never replaced by an invented one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from gradwire.errors import ConfigError
from gradwire.events import FORMAT, VERSION, Event, Opened
from gradwire.observe.files import BLOCK, DAMAGED, Segment, lines, opened, recording, segments

# Sentences kept about damage; the rest is only counted.
MOST_NOTES: Final = 20
# Bytes that one poll reads of one segment at most, so that a huge file cannot fill memory; the next poll continues.
MOST_POLL: Final = 8 << 20


class Record(NamedTuple):
    """One event with its rank and its time in Unix seconds."""

    rank: int
    time: float
    event: Event


@dataclass(slots=True)
class Damage:
    """Counts and notes of what could not be read."""

    lines: int = 0
    unknown: int = 0
    notes: list[str] = field(default_factory=list)

    def note(self, sentence: str) -> None:
        if len(self.notes) < MOST_NOTES:
            self.notes.append(sentence)

    def __bool__(self) -> bool:
        return bool(self.lines or self.notes)

    def __str__(self) -> str:
        counted = [f"{self.lines} damaged lines were skipped"] if self.lines else []
        return "; ".join([*counted, *self.notes])


class _Kind(msgspec.Struct):
    event: str


class Parser:
    """Turns one segment's lines into records; the first line must be an `opened` event."""

    _decoder = msgspec.json.Decoder(Event)
    _kind = msgspec.json.Decoder(_Kind)
    _known = frozenset(str(kind.__struct_config__.tag) for kind in Event.__args__)

    def __init__(self, segment: Segment, damage: Damage) -> None:
        self._segment, self._damage = segment, damage
        self._opened: Opened | None = None

    def take(self, line: bytes | None) -> Record | None:
        """The record of a line; None if it has none. ConfigError if the file cannot be read at all."""
        event = self._decode(line)
        if self._opened is None:
            self._opened = self._head(event)
        if event is None:
            return None
        time = self._opened.wall + (event.at - self._opened.at)
        if not math.isfinite(time):
            self._damage.lines += 1
            return None
        return Record(self._opened.rank, time, event)

    def _decode(self, line: bytes | None) -> Event | None:
        if line is None:
            self._damage.lines += 1
            return None
        try:
            event: Event = self._decoder.decode(line)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            if self._is_unknown(line):
                self._damage.unknown += 1
            else:
                self._damage.lines += 1
            return None
        return event

    def _is_unknown(self, line: bytes) -> bool:
        try:
            return self._kind.decode(line).event not in self._known
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return False

    def _head(self, event: Event | None) -> Opened:
        path = self._segment.path
        if not isinstance(event, Opened) or event.format != FORMAT:
            raise ConfigError(f"{path} is not a gradwire recording: its first line is not an `opened` event")
        if event.version > VERSION:
            raise ConfigError(
                f"{path} has event schema {event.version}, but this gradwire reads {VERSION}; upgrade gradwire"
            )
        if event.rank < 0 or not math.isfinite(event.wall) or not math.isfinite(event.at):
            raise ConfigError(f"{path}: its `opened` line has an impossible rank or time")
        return event


def read(run: str | Path, damage: Damage | None = None) -> Iterator[Record]:
    """All records of a recording in the order of their times. ConfigError if no file has a readable event."""
    damage = Damage() if damage is None else damage
    found = recording(run)
    by_rank: dict[int, list[Segment]] = {}
    for segment in found:
        by_rank.setdefault(segment.rank, []).append(segment)
    errors: list[ConfigError] = []
    whole = [_rank(segments, damage, errors) for segments in by_rank.values()]
    count = 0
    for count, record in enumerate(heapq.merge(*whole, key=lambda record: record.time), 1):  # noqa: B007
        yield record
    if len(errors) == len(found):
        raise errors[0]
    if not count:
        raise ConfigError(f"{run}: no event can be read: {damage or 'its files are empty'}")


def _rank(found: list[Segment], damage: Damage, errors: list[ConfigError]) -> Iterator[Record]:
    for segment in found:
        try:
            yield from read_segment(segment, damage)
        except ConfigError as error:
            errors.append(error)
            damage.note(str(error))


def read_segment(segment: Segment, damage: Damage) -> Iterator[Record]:
    """One file's records. A truncated end, as a crash leaves it, counts as one damaged line."""
    parser = Parser(segment, damage)
    with opened(segment.path) as file:
        for line in lines(file):
            record = parser.take(line)
            if record is not None:
                yield record


@dataclass(slots=True)
class _Position:
    """How far one segment was read."""

    parser: Parser
    read: int = 0
    more: bool = False
    done: bool = False


class Follower:
    """Reads a recording that is still being written: every `poll` gives what is new."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._positions: dict[tuple[int, int], _Position] = {}
        self.damage = Damage()
        # When a file of the recording was last written or touched, in Unix seconds.
        self.touched = 0.0

    def poll(self) -> list[Record]:
        """New records in the order of their times; empty while there is no recording yet."""
        fresh: list[Record] = []
        for segment in self._segments():
            key = (segment.rank, segment.number)
            position = self._positions.get(key)
            if position is None:
                position = self._positions[key] = _Position(Parser(segment, self.damage))
            if not position.done:
                self.touched = max(self.touched, touched(segment))
                fresh += self._advance(segment, position)
        fresh.sort(key=lambda record: record.time)
        return fresh

    def _segments(self) -> list[Segment]:
        try:
            return segments(self._folder) if self._folder.is_dir() else []
        except OSError as error:
            self.damage.note(f"{self._folder}: {error.strerror}")
            return []

    def _advance(self, segment: Segment, position: _Position) -> list[Record]:
        """Records of complete lines after the position. A packed segment equals the plain one and is final."""
        found: list[Record] = []
        try:
            for line in _new_lines(segment, position):
                record = position.parser.take(line)
                if record is not None:
                    found.append(record)
            position.done = segment.packed and not position.more
        except (ConfigError, OSError) as error:
            if not isinstance(error.__cause__ or error, FileNotFoundError):
                position.done = True
                self.damage.note(str(error))
            # Otherwise it was packed after it was listed; the next poll finds it.
        except DAMAGED:
            position.done = True
            self.damage.note(f"{segment.path} is damaged or truncated")
        return found


def touched(segment: Segment) -> float:
    """When a file was last written or touched; 0 if it is gone."""
    try:
        return segment.path.stat().st_mtime
    except OSError:
        return 0.0


def _new_lines(segment: Segment, position: _Position) -> Iterator[bytes | None]:
    """Complete lines after the position, at most MOST_POLL bytes; None for a part without a line end. Damage is raised
    after the lines before it were yielded."""
    if not segment.packed and segment.path.stat().st_size <= position.read:
        return
    body, damage = bytearray(), None
    with opened(segment.path) as file:
        try:
            _skip(file, position.read)
            while len(body) < MOST_POLL and (block := file.read1(BLOCK)):
                body += block
        except DAMAGED as error:
            damage = error
    whole = body.rfind(b"\n") + 1
    position.more = len(body) >= MOST_POLL
    if whole:
        position.read += whole
        yield from bytes(body[: whole - 1]).split(b"\n")
    elif position.more:
        position.read += len(body)
        yield None
    if damage is not None:
        raise damage


def _skip(file: object, count: int) -> None:
    if count:
        file.seek(count)  # type: ignore[attr-defined]
