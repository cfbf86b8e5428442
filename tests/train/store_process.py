"""A rank of an elastic job, started as `-m tests.train.store_process FOLDER`. Rank 0 kills itself at step 8."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import gradwire
from tests.train import jobs

STEPS = 60
# A killed process is noticed by its closed connection. A live one is silent for seconds on a busy machine: it must not
# be taken for dead, because it would rejoin and skip the steps that were made without it.
CONFIG: dict[str, Any] = {
    "level": "int8", "plan": "loadaware", "planning": {"elastic": True, "rejoin": 40.0},
    "transport": {"kind": "tcp", "timeout": 60.0, "dead_after": 10.0, "connect": 10.0},
}  # fmt: skip

if __name__ == "__main__":
    gradwire.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    jobs.elastic(rank, CONFIG, STEPS, sys.argv[1], dies=rank == 0)
    (Path(sys.argv[1]) / f"{rank}.done").touch()
