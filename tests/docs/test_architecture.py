"""ARCHITECTURE.md: every file, folder, class and thread name that it mentions in backticks exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "gradwire"
PAGE = ROOT / "ARCHITECTURE.md"
# A path with a folder is given from one of these.
STARTS = (ROOT, PACKAGE, ROOT / "native")
FILE = re.compile(r"[\w./-]+\.(?:py|cpp|h|md|toml|pml)")
FOLDER = re.compile(r"[\w./-]+/")
CLASS = re.compile(r"([a-z_][\w/]*)\.([A-Z]\w+)")
# What stands for a variable part of a thread's name: N, <lane>, {lane}.
VARIABLE = r"(?:[A-Z]+|<\w+>|\{\w+\})"


def mentions(page: Path) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")))


def exists(path: str) -> bool:
    """Files without a folder may be anywhere in the package or the native code; their folder is clear from the text."""
    if any((start / path).exists() for start in STARTS):
        return True
    return "/" not in path and any(next(start.rglob(path), None) for start in (PACKAGE, ROOT / "native"))


def defines(module: str, name: str) -> bool:
    found = [path for path in PACKAGE.rglob(f"{Path(module).name}.py") if str(path).endswith(f"/{module}.py")]
    return any(re.search(rf"^(?:class|def) {name}\b|^{name}\b", path.read_text(), re.MULTILINE) for path in found)


def thread_names() -> Iterator[str]:
    """Patterns of the strings that begin with "gradwire-" in the source; threads are named by such strings."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("gradwire-"):
                yield re.escape(node.value)
            elif isinstance(node, ast.JoinedStr) and str(getattr(node.values[0], "value", "")).startswith("gradwire-"):
                yield "".join(re.escape(p.value) if isinstance(p, ast.Constant) else VARIABLE for p in node.values)


def missing(page: Path) -> list[str]:
    names = [re.compile(pattern) for pattern in thread_names() if pattern != re.escape("gradwire-")]
    wrong = []
    for text in sorted(mentions(page)):
        if FILE.fullmatch(text) or FOLDER.fullmatch(text):
            found = exists(text)
        elif text.startswith("gradwire-"):
            found = any(name.fullmatch(text) for name in names)
        elif (dotted := CLASS.match(text)) and not text.startswith(("torch", "nn.", "dist.")):
            found = defines(dotted[1], dotted[2])
        else:
            continue
        if not found:
            wrong.append(text)
    return wrong


def test_everything_that_the_architecture_names_exists() -> None:
    assert missing(PAGE) == []


@pytest.mark.parametrize("text", ["runtime/no.py", "no.cpp", "no/", "gradwire-no", "gradwire-0", "no.Session"])
def test_a_name_that_does_not_exist_is_found(text: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"`runtime/session.py`, `session.Session`, `sense/`, `gradwire-N`, `gradwire-recorder`, `{text}`\n")
    assert missing(page) == [text]
