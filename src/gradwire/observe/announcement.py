"""Announcement: a job says where it records, for the view that started it.

`gradwire lab run` asks its command to record into a directory of its own (GRADWIRE_RECORD), but a script that calls
`attach(..., record=DIR)` records into DIR. The view names a file in GRADWIRE_ANNOUNCE; rank 0's recorder writes its
directory there, and the view follows it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

VARIABLE: Final = "GRADWIRE_ANNOUNCE"


def announce(folder: Path) -> None:
    """Tell whoever asked where this process records; a file that cannot be written costs the view, not the training."""
    if named := os.environ.get(VARIABLE):
        with contextlib.suppress(OSError):
            Path(named).write_text(str(folder.resolve()), encoding="utf-8")


def announced(file: Path) -> Path | None:
    """The directory that was announced, once there is one."""
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return Path(text) if text else None
