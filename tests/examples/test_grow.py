"""Grow: a rank that is started alone joins the job of the example, and the others go on when it is killed."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cli.test_store import served
from tests.examples.test_snippets import ROOT, environment, run

__all__ = ["served"]
SCRIPT = "examples/grow.py"
# Until three processes have imported torch on a busy machine, and agreed.
PATIENCE = 120.0


class Output:
    """What the processes of a job print."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._changed = threading.Condition()

    def read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()

    def await_line(self, text: str) -> None:
        """A line that contains this, after those that were awaited before."""
        deadline = time.monotonic() + PATIENCE
        with self._changed:
            while not any(text in line for line in self._lines):
                assert self._changed.wait(deadline - time.monotonic()), (text, self._lines)
            self._lines.clear()


@contextmanager
def rank(output: Output, **settings: str) -> Iterator[subprocess.Popen[str]]:
    """A process of the job, which is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, SCRIPT, "--steps", "1000000", "--sync-every", "5"], cwd=ROOT, env=environment(**settings),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    reader = threading.Thread(target=output.read, args=(process,))
    reader.start()
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        reader.join()


def test_one_rank_alone_trains_to_the_last_step() -> None:
    done = run([sys.executable, SCRIPT, "--steps", "200", "--step-seconds", "0"], RANK="0", WORLD_SIZE="1",
               MASTER_ADDR="127.0.0.1", MASTER_PORT="0")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "rank 0: 200 steps, accuracy 0." in done.stdout
    assert float(done.stdout.split("accuracy ")[1]) > 0.7, "chance is 0.1"


@pytest.mark.timeout(300)
def test_a_rank_joins_the_job_and_the_others_go_on_when_it_is_killed(
    served: tuple[subprocess.Popen[str], str],
) -> None:
    output, job = Output(), {"GRADWIRE_STORE": served[1], "GRADWIRE_IFNAME": "lo", "WORLD_SIZE": "2"}
    with rank(output, **job, RANK="0"), rank(output, **job, RANK="1"):
        output.await_line("is the mean of ranks [0, 1]\n")
        with rank(output, **job, GRADWIRE_REJOIN="any"):
            output.await_line("is the mean of ranks [0, 1, 2]\n")
        output.await_line("is the mean of ranks [0, 1]\n")
