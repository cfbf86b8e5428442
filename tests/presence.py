"""Tests of optional parts skip where a package is absent; in CI, which installs all of them, that is a failure."""

from __future__ import annotations

import importlib.util
import os

import pytest


def needs(package: str, extra: str) -> None:
    """Go on only where `package`, which gradwire's extra `extra` brings, can be imported."""
    if importlib.util.find_spec(package) is None:
        assert "GRADWIRE_CI" not in os.environ, f"CI must install {package}: pip install 'gradwire[{extra}]'"
        pytest.skip(f"{package} is not installed; pip install 'gradwire[{extra}]'", allow_module_level=True)
