"""Restarts: a rank killed in training is restarted by torchrun with its residuals, and training ends the same."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "restarts.py"
STEPS, EVERY, KILLED_AT = 24, 8, 9
# Without it torch 2.13 keeps one store over restarts, in which gloo finds the addresses of the run before.
FRESH_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
Run = dict[int, dict[int, str]]  # step -> rank -> hash of the weights
# Two ranks write to one pipe: a line may contain the output of both.
BEGIN = re.compile(r"rank (\d) is process (\d+), from")
STEP = re.compile(r"rank (\d) step (\d+) weights ([0-9a-f]{8})")


def train(folder: Path, kill_rank: int | None, level: str, **settings: str) -> tuple[list[Run], str]:
    """Every run of the job, and all output. Kills one rank once, when it has printed the step."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GRADWIRE_")}
    arguments = [
        "--standalone",
        "--nproc-per-node",
        "2",
        "--max-restarts",
        "1",
        "--monitor-interval",
        "0.1",
        str(SCRIPT),
    ]
    arguments += ["--steps", str(STEPS), "--every", str(EVERY), "--checkpoint", str(folder), "--level", level]
    # Seven pauses between the step at which it is killed and the next checkpoint: enough time on a busy machine.
    arguments += ["--pause", "0.2"] if kill_rank is not None else []
    process = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *arguments],
        env={**kept, **FRESH_STORE, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **settings},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    runs: list[Run] = []
    pids: dict[int, int] = {}
    output, begun = "", defaultdict[int, int](int)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            output += line
            for begin in BEGIN.finditer(line):
                rank = int(begin[1])
                pids[rank], begun[rank] = int(begin[2]), begun[rank] + 1
                if len(runs) < begun[rank]:
                    runs.append(defaultdict(dict))
            for step in STEP.finditer(line):
                rank, number = int(step[1]), int(step[2])
                runs[begun[rank] - 1][number][rank] = step[3]
                if len(runs) == 1 and rank == kill_rank and number == KILLED_AT:
                    os.kill(pids[rank], signal.SIGKILL)
        assert process.wait(60) == 0, output
    finally:
        process.kill()
        process.wait()
    return runs, output


def check(runs: list[Run], output: str) -> None:
    assert len(runs) == 2, output
    assert min(runs[1]) == EVERY, "the second run begins at the last checkpoint"
    assert max(runs[1]) == STEPS - 1
    for ranks in (ranks for run in runs for ranks in run.values()):
        assert len(set(ranks.values())) == 1, "replicas differ"


@pytest.mark.timeout(240)
def test_a_killed_rank_is_restarted_with_its_residuals_and_training_ends_the_same(tmp_path: Path) -> None:
    # Exact selection and no rounding: nothing depends on DDP's bucket layout, which each run makes again.
    (whole,), _ = train(tmp_path / "whole", None, "exactk:0.05")
    runs, output = train(tmp_path / "killed", 1, "exactk:0.05")
    check(runs, output)
    assert runs[1][STEPS - 1] == whole[STEPS - 1], "residuals were lost"


@pytest.mark.timeout(240)
def test_on_ltp_a_killed_coordinator_is_restarted_too(tmp_path: Path) -> None:
    check(*train(tmp_path, 0, "topk:0.05+int8", GRADWIRE_TRANSPORT="ltp", GRADWIRE_TRANSPORT_DEAD_AFTER="3"))


@pytest.mark.timeout(240)
def test_states_of_two_steps_are_an_error_on_every_rank(tmp_path: Path) -> None:
    """Two checkpoints were mixed: rank 1's residuals are those of another step."""
    train(tmp_path, None, "int8")
    (tmp_path / "16" / "rank1.pt").write_bytes((tmp_path / "8" / "rank1.pt").read_bytes())
    for name in ("24", "8"):
        for file in (tmp_path / name).iterdir():
            file.unlink()
    with pytest.raises(AssertionError) as failure:
        train(tmp_path, None, "int8")
    assert "the step of the state to load: rank 0 has 16, rank 1 has 8" in str(failure.value)
