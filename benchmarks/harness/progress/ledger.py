"""Ledger: finished runs in a file of JSON lines, so that an interrupted benchmark continues where it was.

A run is known by a hash of its settings. The code that its result depends on is part of them, without comments and
docstrings, so that a change of the code runs it again; `any_code` accepts a run of other code as well.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

import gradwire

SOURCES: Final = Path(gradwire.__file__).parent
# What the loss of a fixed level depends on, what its times depend on, and what a controller's run depends on.
TRAINING: Final = (
    "decide/fixed.py",
    "compress",
    "exchange",
    "level.py",
    *(f"simulate/{one}.py" for one in ("tasks", "workers", "lockstep")),
)
TIMING: Final = ("network", "simulate/timeline.py", "simulate/transfer.py", "decide/ladder.py")
LOCAL: Final = ("local_steps", "simulate/local_workers.py", "simulate/local_training.py")
CONTROL: Final = (*TRAINING, *TIMING, "decide", "sense", "runtime/governor.py", "simulate/training.py", "types.py")

Settings = dict[str, Any]


def key_of(settings: Settings, code: str = "") -> str:
    text = json.dumps([settings, code], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def code_of(parts: tuple[str, ...], root: Path = SOURCES) -> str:
    """A hash of the modules' syntax trees."""
    digest = hashlib.sha256()
    for part in parts:
        path = root / part
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(str(file.relative_to(root)).encode())
            digest.update(ast.dump(_without_docstrings(ast.parse(file.read_text()))).encode())
    return digest.hexdigest()[:16]


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node, clean=False
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return tree


class Ledger:
    """Records by settings; `path` None keeps them in memory only."""

    def __init__(self, path: Path | None, *, any_code: bool = False) -> None:
        self._path, self._any_code = path, any_code
        self._known: dict[str, dict[str, Any]] = {}
        self._other_code: dict[str, dict[str, Any]] = {}
        self.of_other_code = 0
        self._cut_short = path is not None and path.exists() and not path.read_bytes().endswith(b"\n")
        for record in self._read():
            self._known[record["key"]] = record
            self._other_code[key_of(record["settings"])] = record

    def _read(self) -> Iterable[dict[str, Any]]:
        if self._path is None or not self._path.exists():
            return
        for line in self._path.read_text().splitlines():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                continue  # the last line of a run that was killed

    def get(self, settings: Settings, code: str) -> dict[str, Any] | None:
        found = self._known.get(key_of(settings, code))
        if found is None and self._any_code:
            found = self._other_code.get(key_of(settings))
            self.of_other_code += found is not None
        return found

    def of_any_code(self, settings: Settings) -> dict[str, Any] | None:
        """The last record of these settings."""
        return self._other_code.get(key_of(settings))

    def add(self, settings: Settings, code: str, result: dict[str, Any]) -> dict[str, Any]:
        record = {"key": key_of(settings, code), "settings": settings, "code": code, **result}
        self._known[record["key"]] = record
        self._other_code[key_of(settings)] = record
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                file.write("\n" * self._cut_short + json.dumps(record) + "\n")
            self._cut_short = False
        return record
