"""Announcement: reports the recording directory of a job to the view that started it.

`gradwire lab run` sets GRADWIRE_RECORD to a directory of its own, but a script that calls `attach(..., record=DIR)`
records into DIR. The view names a file in GRADWIRE_ANNOUNCE; rank 0's recorder writes its directory into that file,
and the view follows it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

VARIABLE: Final = "GRADWIRE_ANNOUNCE"


def announce(folder: Path) -> None:
    """Write the recording directory to the file named by GRADWIRE_ANNOUNCE. A failed write does not stop training."""
    if named := os.environ.get(VARIABLE):
        with contextlib.suppress(OSError):
            Path(named).write_text(str(folder.resolve()), encoding="utf-8")


def announced(file: Path) -> Path | None:
    """The announced directory; None until one was announced."""
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return Path(text) if text else None
