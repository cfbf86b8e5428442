"""Program: finds the lab's installed native program."""

from __future__ import annotations

import os
from pathlib import Path

import gradwire
from gradwire.errors import ConfigError

PROGRAM = "gradwire-linkemu"


def installed_program() -> Path:
    """The emulator and launcher, installed next to the native module."""
    candidates = [Path(entry) / "bin" / PROGRAM for entry in gradwire.__path__]
    try:
        from gradwire import _native

        candidates.append(Path(_native.__file__).parent / "bin" / PROGRAM)
    except ImportError:
        pass
    for candidate in candidates:
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    raise ConfigError(f"lab: {PROGRAM} was not found in {candidates[-1].parent}; run 'pip install .' again")
