"""The checked-in stub of the native module is what its bindings say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gradwire


def test_the_stub_matches_the_native_module(tmp_path: Path) -> None:
    made = tmp_path / "_native.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "gradwire._native", "-o", str(made)]
    subprocess.run(command, check=True, timeout=60)
    kept = Path(gradwire.__file__).with_name("_native.pyi")
    assert kept.read_text() == made.read_text(), "run `make stubs`"
