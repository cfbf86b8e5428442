"""Facts about the machine and the code that every result file records."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

# More runnable processes than this per core before the run: other programs use the machine.
BUSY = 0.5


def machine_facts() -> dict[str, Any]:
    load = os.getloadavg()[0]
    cores = len(os.sched_getaffinity(0))
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": cores,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "gradwire": version("gradwire"),
        "revision": _revision(),
        "load_before": round(load, 2),
        "shared_machine": load > BUSY * cores,
    }


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _revision() -> str:
    """The commit, with a + where the tree differs from it."""
    folder = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=10"],
            cwd=folder, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.strip()
