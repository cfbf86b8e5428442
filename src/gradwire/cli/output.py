"""Output: the files that an option names. One that cannot be written is the caller's mistake, told in one line."""

from __future__ import annotations

import os
from pathlib import Path

from gradwire.errors import ConfigError


def check_writable(path: Path, option: str) -> None:
    """To be asked before the work whose result the file will hold; nothing is made or emptied."""
    there = path.exists()
    if path.is_dir() or not (there or path.parent.is_dir()) or not os.access(path if there else path.parent, os.W_OK):
        raise ConfigError(f"{option}: cannot write {path}; name a file in a directory that is there and may be written")


def write(path: Path, text: str, option: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{option}: cannot write {path} ({error.strerror}); name another file") from error
