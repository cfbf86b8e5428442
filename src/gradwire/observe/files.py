"""Files: the layout of a recording on disk.

    runs/x/rank00003.0000.jsonl.zst     finished segments of rank 3, compressed
    runs/x/rank00003.0001.jsonl         the segment being written

A segment is JSON lines and begins with an `opened` event, so each can be read alone. Reading gives lines of bytes that
are never longer than MOST_LINE, whatever the file contains.
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
# The longest line gradwire writes, a plan for a thousand sites, is some tens of kilobytes.
MOST_LINE: Final = 1 << 20
_NAME: Final = re.compile(r"^rank(\d{5})\.(\d{4,})\.jsonl(\.zst)?$")
# Bytes of one read: half of a zstd block. Of a damaged compressed file, at most this much before the damage is lost.
BLOCK: Final = 1 << 16
# Exceptions that reading raises when a compressed segment is damaged or truncated.
DAMAGED: Final = (EOFError, zstd.ZstdError)


class Readable(Protocol):
    """The part of a binary file that reading lines needs. `read` would discard valid bytes before a damaged place."""

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
    """A recording's files by rank and number. Where a segment exists twice, the packed file is the complete one."""
    found: dict[tuple[int, int], Segment] = {}
    for path in sorted(folder.iterdir()):
        match = _NAME.match(path.name)
        if match is not None and path.is_file():
            key = (int(match[1]), int(match[2]))
            found[key] = Segment(*key, path)  # ".jsonl" sorts before ".jsonl.zst"
    return [found[key] for key in sorted(found)]


def recording(run: str | Path) -> list[Segment]:
    """The files of a recording named by its directory or by one of its files. ConfigError if there is none or it cannot
    be read."""
    try:
        return _recording(Path(run))
    except OSError as error:
        raise ConfigError(f"{run}: {error.strerror}; name a readable directory") from error


def _recording(path: Path) -> list[Segment]:
    if path.is_dir():
        found = segments(path)
        if not found:
            raise ConfigError(
                f"{path} contains no recording (no rank00000.0000.jsonl); record with attach(..., record=DIR)"
            )
        return found
    if path.is_file():
        match = _NAME.match(path.name)
        return [Segment(int(match[1]) if match else 0, int(match[2]) if match else 0, path)]
    raise ConfigError(
        f"{path}: no such recording; name the directory given to record= or GRADWIRE_RECORD, or one of its files"
    )


def pack(body: bytes) -> bytes:
    """A segment's bytes, compressed."""
    return zstd.compress(body)


@contextmanager
def opened(path: Path) -> Iterator[Readable]:
    """A segment's bytes, decompressed if it is packed."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); make the file readable") from error
    with file:
        if path.name.endswith(".zst"):
            with zstd.ZstdFile(file) as unpacked:
                yield unpacked
        else:
            yield file


def lines(file: Readable) -> Iterator[bytes | None]:
    """The file's lines without line ends; None for a line that is too long or damaged, or a truncated last line."""
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
