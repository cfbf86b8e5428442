"""Job: the instructions for the workers of a run, as a JSON file, and the prefix that marks their report lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.workload import WorkloadSpec

MARK = "@bench "


@dataclass(frozen=True, slots=True)
class Block:
    """One turn of one contestant."""

    contestant: str
    repeat: int


@dataclass(frozen=True, slots=True)
class Job:
    """`seconds` is about how long a block's measured steps take; `fewest` steps are measured in any case.

    With `lasting` a block has no warm-up and measures every step of that many seconds: on a changing network the time
    that a contestant takes to adapt counts.
    """

    workload: WorkloadSpec
    blocks: tuple[Block, ...]
    seconds: float = 3.0
    fewest: int = 3
    timeout: float = 120.0
    port: int = 29500
    lasting: float = 0.0

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Job:
        fields: dict[str, Any] = json.loads(path.read_text())
        fields["workload"] = WorkloadSpec(**fields["workload"])
        fields["blocks"] = tuple(Block(**block) for block in fields["blocks"])
        return cls(**fields)


def interleaved(contestants: Sequence[str], repeats: int) -> tuple[Block, ...]:
    """Every contestant once per round; every second round is reversed, so that neighbours in the order change."""
    rounds = []
    for repeat in range(repeats):
        order = list(contestants) if repeat % 2 == 0 else list(reversed(contestants))
        rounds += [Block(name, repeat) for name in order]
    return tuple(rounds)
