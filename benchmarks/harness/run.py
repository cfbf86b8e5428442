"""Run: a job's blocks on a network in the lab, whatever happens to some of them.

The workers' reports come in as lines; around each measurement the link counters are read, so that every block has its
own wire bytes, drops and verdict on the lab. A contestant that fails or hangs is noted, and the rest run without it.
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
# Starting 8 Pythons with torch on 2 cores takes this long at the worst.
START_SECONDS = 90.0


@dataclass(slots=True)
class BlockReport:
    """One block as all ranks saw it, and what the links did meanwhile."""

    block: Block
    ranks: dict[int, dict[str, Any]] = field(default_factory=dict)
    stats: EmulatorStats | None = None
    error: str = ""


class _Listener:
    """Puts the workers' lines together into block reports."""

    def __init__(self, lab: Lab, world: int, note: Note) -> None:
        self._lab, self._world, self._note = lab, world, note
        self._before: EmulatorStats | None = None
        self.reports: list[BlockReport] = []
        self.noise: list[str] = []

    def __call__(self, host: str, line: str) -> None:
        if not line.startswith(MARK):
            self.noise.append(f"{host}: {line}")
            return
        # Another program in the rank may write before the line's end does.
        told, _ = json.JSONDecoder().raw_decode(line.removeprefix(MARK))
        if told["event"] == "end":
            self.reports[-1].ranks[told["rank"]] = told
            if len(self.reports[-1].ranks) == self._world and self._before is not None:
                self.reports[-1].stats = self._lab.stats().since(self._before)
        elif told["rank"] == 0 and told["event"] == "begin":
            self._before = self._lab.stats()
        elif told["rank"] == 0:
            self._note(f"{told['contestant']}, round {told['repeat'] + 1}")
            self.reports.append(BlockReport(Block(told["contestant"], told["repeat"])))


def run(network: Network, job: Job, note: Note, mode: Mode = "namespaces") -> list[BlockReport]:
    """Reports of every block, failed ones with their error."""
    done: list[BlockReport] = []
    world = len(network.ranks)
    with tempfile.TemporaryDirectory() as folder, Lab(network, note, mode) as lab:
        path = Path(folder) / "job.json"
        while job.blocks:
            job.write(path)
            listener = _Listener(lab, world, note)
            result = lab.run(
                [sys.executable, "-m", "harness.worker", str(path)],
                env={"PYTHONPATH": _search_path(), "TORCH_CPP_LOG_LEVEL": "ERROR"},
                timeout=START_SECONDS + job.timeout * len(job.blocks),
                on_line=listener,
                port=job.port,
            )
            whole = [report for report in listener.reports if len(report.ranks) == world]
            done += whole
            left = job.blocks[len(whole) :]
            if left:
                done.append(BlockReport(left[0], error=_why(listener.noise, result.code)))
                note(f"{left[0].contestant} failed: {done[-1].error}")
                left = tuple(block for block in left if block.contestant != left[0].contestant)
            job = replace(job, blocks=left)
    return done


def _search_path() -> str:
    """Workers find the harness, and what the caller's PYTHONPATH offers."""
    return os.pathsep.join(filter(None, (str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH"))))


def _why(noise: list[str], code: int) -> str:
    """The first error anybody spoke of; later ones are mostly its echoes on other hosts."""
    told = [line for line in noise if "Error: " in line and "Warning" not in line]
    return (told or noise[-1:] or [f"exit code {code}"])[0][:300]
