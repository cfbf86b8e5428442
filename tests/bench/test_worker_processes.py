"""The worker processes of benchmarks: none outlives the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# Each worker creates a file named by its process and then runs until it is ended.
ENDLESS = """
import os, sys, time
from pathlib import Path
from harness.worker_processes import process_pool

def prepare():
    pass

def endless(number):
    Path(sys.argv[1], str(os.getpid())).touch()
    while True:
        time.sleep(1)

if __name__ == "__main__":
    with process_pool(2, prepare) as pool:
        list(pool.map(endless, range(2)))
"""


def becomes_true(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)
    return condition()


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_workers_end_when_the_process_that_started_them_is_killed(tmp_path: Path) -> None:
    script, workers = tmp_path / "endless.py", tmp_path / "workers"
    script.write_text(ENDLESS)
    workers.mkdir()
    parent = subprocess.Popen([sys.executable, script, workers], env={**os.environ, "PYTHONPATH": str(BENCHMARKS)})
    try:
        assert becomes_true(lambda: len(list(workers.iterdir())) == 2)
    finally:
        parent.kill()
        parent.wait()
    pids = [int(path.name) for path in workers.iterdir()]
    try:
        assert becomes_true(lambda: not any(map(runs, pids)), 20.0)
    finally:
        for pid in filter(runs, pids):
            os.kill(pid, signal.SIGKILL)
