"""Run: the blocks of a job on a network in the lab.

The workers report by lines of output. The link counters are read before and after each measurement, so that every block
has its own wire bytes, drops and verdict of the lab. If a contestant fails or hangs, the others run without it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradwire.lab import EmulatorStats, Lab
from gradwire.lab.lab import Mode
from gradwire.network import Network
from harness.job import MARK, Block, Job

Note = Callable[[str], None]
# Starting 8 Pythons with torch on 2 cores takes at most this long.
START_SECONDS = 90.0


@dataclass(slots=True)
class BlockReport:
    """The reports of all ranks about one block, and the link counters for the same time."""

    block: Block
    ranks: dict[int, dict[str, Any]] = field(default_factory=dict)
    stats: EmulatorStats | None = None
    error: str = ""


class _ReportCollector:
    """Assembles block reports from the workers' lines."""

    def __init__(self, lab: Lab, world: int, note: Note) -> None:
        self._lab, self._world, self._note = lab, world, note
        self._before: EmulatorStats | None = None
        self.reports: list[BlockReport] = []
        self.output: list[str] = []

    def __call__(self, host: str, line: str) -> None:
        if not line.startswith(MARK):
            self.output.append(f"{host}: {line}")
            return
        # Another thread or program may write to the same line after the JSON.
        message, _ = json.JSONDecoder().raw_decode(line.removeprefix(MARK))
        if message["event"] == "end":
            self.reports[-1].ranks[message["rank"]] = message
            if len(self.reports[-1].ranks) == self._world and self._before is not None:
                self.reports[-1].stats = self._lab.stats().since(self._before)
        elif message["rank"] == 0 and message["event"] == "begin":
            self._before = self._lab.stats()
        elif message["rank"] == 0:
            self._note(f"{message['contestant']}, round {message['repeat'] + 1}")
            self.reports.append(BlockReport(Block(message["contestant"], message["repeat"])))


def run(
    network: Network, job: Job, note: Note, mode: Mode = "namespaces", dilate: float | None = None
) -> list[BlockReport]:
    """Reports of all blocks, in undilated seconds; failed blocks have `error` set."""
    done: list[BlockReport] = []
    world = len(network.ranks)
    with tempfile.TemporaryDirectory() as folder, Lab(network, note, mode, dilate) as lab:
        path = Path(folder) / "job.json"
        while job.blocks:
            job.write(path)
            collector = _ReportCollector(lab, world, note)
            result = lab.run(
                [sys.executable, "-m", "harness.worker", str(path)],
                env={"PYTHONPATH": _search_path(), "TORCH_CPP_LOG_LEVEL": "ERROR"},
                timeout=START_SECONDS + job.timeout * len(job.blocks),
                on_line=collector,
                port=job.port,
            )
            whole = [report for report in collector.reports if len(report.ranks) == world]
            done += whole
            left = job.blocks[len(whole) :]
            if left:
                done.append(BlockReport(left[0], error=_first_error(collector.output, result.code)))
                note(f"{left[0].contestant} failed: {done[-1].error}")
                left = tuple(block for block in left if block.contestant != left[0].contestant)
            job = replace(job, blocks=left)
    return done


def _search_path() -> str:
    """The harness, and the caller's PYTHONPATH."""
    return os.pathsep.join(filter(None, (str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH"))))


def _first_error(output: list[str], code: int) -> str:
    """The first error in the output; later ones are mostly its consequences on other hosts."""
    errors = [line for line in output if "Error: " in line and "Warning" not in line]
    return (errors or output[-1:] or [f"exit code {code}"])[0][:300]
