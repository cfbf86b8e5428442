"""Ledger: finished runs in files of JSON lines, so that a benchmark continues where it was, on any machine.

A run is known by its settings and a fingerprint of the code that its result depends on: a change of that code runs it
again. `any_code` accepts a run of other code as well, and `other_code` says which were used.

The files are part of the repository, one for each kind of run. A line is only ever appended, so an older version of a
file is the beginning of a newer one; two branches that ran different things are merged line by line (.gitattributes).
A line that is not whole, because the process was killed, is ignored and does not spoil the next one. `tidy` is what
drops lines: those that a later one of the same settings replaces.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.progress.packing import packed, unpacked

Settings = dict[str, Any]
Record = dict[str, Any]


def key_of(settings: Settings, code: str = "") -> str:
    text = json.dumps([settings, code], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Ledger:
    """Records by settings, in the files of `folder`; None keeps them in memory only. `made` is added to new records:
    when and by which revision they were made."""

    def __init__(self, folder: Path | None, *, any_code: bool = False, made: Record | None = None) -> None:
        self._folder, self._any_code, self._made = folder, any_code, made or {}
        self._known: dict[str, Record] = {}
        self._last: dict[str, Record] = {}
        self.other_code: dict[str, Record] = {}
        for file in self._files():
            for record in _read(file):
                self._remember(record)

    def get(self, settings: Settings, code: str) -> Record | None:
        found = self._known.get(key_of(settings, code))
        if found is None and self._any_code:
            found = self.of_any_code(settings)
            if found is not None:
                self.other_code[key_of(settings)] = found
        return found

    def of_any_code(self, settings: Settings) -> Record | None:
        """The last record of these settings."""
        return self._last.get(key_of(settings))

    def add(self, settings: Settings, code: str, result: Record) -> Record:
        line = {"settings": settings, "code": code, **packed(self._made | result)}
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            _append(self._folder / f"{settings['kind']}.jsonl", json.dumps(line) + "\n")
        return self._remember(unpacked(line))

    def tidy(self) -> int:
        """Drop the lines that a later one of the same settings replaces; how many."""
        dropped = 0
        for file in self._files():
            lines = {key_of(one["settings"]): one for one in map(packed, _read(file))}
            before = len(file.read_text().splitlines())
            new = file.with_suffix(".new")
            new.write_text("".join(json.dumps(one) + "\n" for one in lines.values()))
            new.replace(file)
            dropped += before - len(lines)
        return dropped

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*.jsonl")) if self._folder is not None else []

    def _remember(self, record: Record) -> Record:
        self._known[key_of(record["settings"], record["code"])] = record
        self._last[key_of(record["settings"])] = record
        return record


def _read(file: Path) -> Iterator[Record]:
    for line in file.read_text().splitlines():
        try:
            yield unpacked(json.loads(line))
        except (ValueError, zlib.error):
            continue  # the last line of a run that was killed


def _append(file: Path, line: str) -> None:
    """In one write, and on a line of its own whatever was cut short before."""
    with file.open("ab+") as out:
        out.seek(0, os.SEEK_END)
        cut_short = False
        if out.tell():
            out.seek(-1, os.SEEK_END)
            cut_short = out.read(1) != b"\n"
        out.write(b"\n" * cut_short + line.encode())
