"""Files: how a recording lies on disk.

    runs/x/rank00003.0000.jsonl.zst     finished segments of rank 3, compressed
    runs/x/rank00003.0001.jsonl         the one being written

A segment is JSON lines and begins with an `opened` event, so each can be read alone. Reading gives lines of bytes,
never more than MOST_LINE long, whatever is in the file.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from gradwire.errors import ConfigError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

PLAIN: Final = ".jsonl"
PACKED: Final = ".jsonl.zst"
# A plan for a thousand sites is some tens of kilobytes; a longer line is none of ours.
MOST_LINE: Final = 1 << 20
_NAME: Final = re.compile(r"^rank(\d{5})\.(\d{4,})\.jsonl(\.zst)?$")
# Asked for at once, and the most that is lost in front of damage inside a compressed file: half a block of zstd's.
BLOCK: Final = 1 << 16
# What reading raises where a compressed segment is damaged or cut.
DAMAGED: Final = (EOFError, zstd.ZstdError)


class Readable(Protocol):
    """A binary file, as far as reading lines needs one. `read` would throw away what it has when it meets damage."""

    def read1(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """One file of one rank."""

    rank: int
    number: int
    path: Path

    @property
    def packed(self) -> bool:
        return self.path.name.endswith(".zst")


def segment_path(folder: Path, rank: int, number: int, suffix: str = PLAIN) -> Path:
    return folder / f"rank{rank:05d}.{number:04d}{suffix}"


def segments(folder: Path) -> list[Segment]:
    """A recording's files by rank and time; where a segment is there twice, the packed one is whole."""
    found: dict[tuple[int, int], Segment] = {}
    for path in sorted(folder.iterdir()):
        match = _NAME.match(path.name)
        if match is not None and path.is_file():
            key = (int(match[1]), int(match[2]))
            found[key] = Segment(*key, path)  # ".jsonl" sorts before ".jsonl.zst"
    return [found[key] for key in sorted(found)]


def recording(run: str | Path) -> list[Segment]:
    """The files of a recording named by its directory or by one of its files. ConfigError where there is none, or none
    that may be read."""
    try:
        return _recording(Path(run))
    except OSError as error:
        raise ConfigError(f"{run}: {error.strerror}; name a directory that you may read") from error


def _recording(path: Path) -> list[Segment]:
    if path.is_dir():
        found = segments(path)
        if not found:
            raise ConfigError(
                f"{path} holds no recording (no rank00000.0000.jsonl); record with attach(..., record=DIR)"
            )
        return found
    if path.is_file():
        match = _NAME.match(path.name)
        return [Segment(int(match[1]) if match else 0, int(match[2]) if match else 0, path)]
    raise ConfigError(
        f"{path}: no such recording; name a directory given to record= or GRADWIRE_RECORD, or a file of it"
    )


def pack(body: bytes) -> bytes:
    """A segment's bytes, compressed."""
    return zstd.compress(body)


@contextmanager
def opened(path: Path) -> Iterator[Readable]:
    """A segment's bytes, unpacked if need be."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    with file:
        if path.name.endswith(".zst"):
            with zstd.ZstdFile(file) as unpacked:
                yield unpacked
        else:
            yield file


def lines(file: Readable) -> Iterator[bytes | None]:
    """The file's lines without their ends; None for one that is too long or damaged, and for a last one cut short."""
    rest, skipping = b"", False
    while True:
        try:
            block = file.read1(BLOCK)
        except (*DAMAGED, OSError):
            yield None
            return
        if not block:
            break
        first, *others = block.split(b"\n")
        rest = b"" if skipping else rest + first
        if others:
            yield None if skipping or len(rest) > MOST_LINE else rest
            skipping = False
            for line in others[:-1]:
                yield line if len(line) <= MOST_LINE else None
            rest = others[-1]
        if len(rest) > MOST_LINE:
            rest, skipping = b"", True
    if rest or skipping:
        yield None
