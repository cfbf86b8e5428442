"""Importing gradwire, and the help of its command line, must not import torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.trials import Trial, decide

HEAVY = ("torch", "numpy", "msgspec", "click", "rich")
PROBE = "import time; began = time.process_time(); {}; used = time.process_time() - began; import sys; print(used, {})"


def measured(statement: str, modules: tuple[str, ...]) -> tuple[float, str]:
    """Least processor seconds of three fresh interpreters, and which of the modules the statement loaded."""
    loaded = f"[name for name in {modules!r} if name in sys.modules]"
    command = [sys.executable, "-c", PROBE.format(statement, loaded)]
    outputs = [subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout for _ in range(3)]
    return min(float(line.split()[0]) for line in outputs), outputs[0].split(maxsplit=1)[1].strip()


def test_import_takes_less_than_a_fifth_of_a_second_and_loads_nothing_heavy() -> None:
    def trial(_: Trial) -> None:
        seconds, loaded = measured("import gradwire", HEAVY)
        assert loaded == "[]"
        assert seconds < 0.2

    decide(trial)


@pytest.mark.parametrize("verb", ["plan", "simulate", "lab", "demo", "doctor"])
def test_help_of_a_verb_does_not_load_torch(verb: str) -> None:
    help_call = f"from gradwire.cli.main import cli; cli.main([{verb!r}, '--help'], standalone_mode=False)"
    command = [sys.executable, "-c", f"{help_call}; import sys; assert 'torch' not in sys.modules"]
    subprocess.run(command, capture_output=True, check=True, timeout=60)
