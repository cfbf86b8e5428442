"""Where the native programs of the lab are installed."""

from __future__ import annotations

import os
from pathlib import Path

import gradwire
from gradwire.errors import ConfigError

PROGRAM = "gradwire-linkemu"


def installed_program() -> Path:
    """The emulator and launcher; it lies beside the native module, wherever the installation keeps that."""
    places = [Path(entry) / "bin" / PROGRAM for entry in gradwire.__path__]
    try:
        from gradwire import _native

        places.append(Path(_native.__file__).parent / "bin" / PROGRAM)
    except ImportError:
        pass
    for place in places:
        if place.is_file() and os.access(place, os.X_OK):
            return place
    raise ConfigError(f"lab: {PROGRAM} is not installed (looked in {places[-1].parent}); run 'pip install .' again")
