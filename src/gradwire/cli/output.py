"""Output: writes the files that options name; a file that cannot be written is a ConfigError."""

from __future__ import annotations

import os
from pathlib import Path

from gradwire.errors import ConfigError


def check_writable(path: Path, option: str) -> None:
    """Check before a long run that its result can be written; creates and changes nothing."""
    exists = path.exists()
    target = path if exists else path.parent
    if path.is_dir() or not (exists or target.is_dir()) or not os.access(target, os.W_OK):
        raise ConfigError(f"{option}: cannot write {path}; name a file in an existing, writable directory")


def write(path: Path, text: str, option: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{option}: cannot write {path} ({error.strerror}); name another file") from error
