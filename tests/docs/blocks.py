"""Reads the fenced blocks of a page: commands to run, and files to save.

A block of `sh` is run unless its first line is a comment "not run by the tests" with the reason.
A block with title="NAME" is saved as NAME for the commands after it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

NOT_RUN = "# not run by the tests"
_FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: language, first line, text, and the file to save it as."""

    language: str
    line: int
    text: str
    title: str | None

    @property
    def is_command(self) -> bool:
        return self.language == "sh"

    @property
    def reason(self) -> str | None:
        """Why a command is not run, from its first line; None if it is run."""
        first = self.text.partition("\n")[0]
        return first.removeprefix(NOT_RUN).lstrip(": ").strip() if first.startswith(NOT_RUN) else None


def blocks(page: Path) -> list[Block]:
    """Every fenced block of a page, in order."""
    text = page.read_text()
    found = []
    for match in _FENCE.finditer(text):
        title = re.search(r'title="([^"]+)"', match[2])
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(match[1], line, match[3], title[1] if title else None))
    return found
