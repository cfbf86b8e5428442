"""The plan-change protocol, checked by spin over every interleaving of a small model."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[2] / "formal" / "check"


@pytest.mark.skipif(shutil.which("spin") is None, reason="spin is not installed (apt-get install spin)")
@pytest.mark.skipif(shutil.which("cc") is None, reason="spin needs a C compiler")
@pytest.mark.timeout(600)
def test_the_model_holds_and_its_broken_variants_are_caught() -> None:
    done = subprocess.run([CHECK], capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stderr
    assert "no step mixes plans" in done.stdout
    assert done.stdout.count("caught") == 2
