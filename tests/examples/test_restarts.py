"""A rank killed in the middle comes back with its residuals by torchrun's restarts, and training ends the same."""

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
# Without it torch 2.13 keeps one store over restarts, in which gloo finds the addresses of the last life.
FRESH_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
Life = dict[int, dict[int, str]]  # step -> rank -> hash of the weights
# Two ranks write to one pipe: a line may hold what both said.
BEGIN = re.compile(r"rank (\d) is process (\d+), from")
STEP = re.compile(r"rank (\d) step (\d+) weights ([0-9a-f]{8})")


def train(folder: Path, kill_rank: int | None, level: str, **settings: str) -> tuple[list[Life], str]:
    """Every life, and all that was printed. Kills one rank once, when it has told the step."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GRADWIRE_")}
    words = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1", "--monitor-interval", "0.1", str(SCRIPT)]
    words += ["--steps", str(STEPS), "--every", str(EVERY), "--checkpoint", str(folder), "--level", level]
    # Between the step it is killed at and the next checkpoint there are seven pauses: time enough on a busy machine.
    words += ["--pause", "0.2"] if kill_rank is not None else []
    process = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *words],
        env={**kept, **FRESH_STORE, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **settings},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    lives: list[Life] = []
    pids: dict[int, int] = {}
    told, begun = "", defaultdict[int, int](int)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            told += line
            for begin in BEGIN.finditer(line):
                rank = int(begin[1])
                pids[rank], begun[rank] = int(begin[2]), begun[rank] + 1
                if len(lives) < begun[rank]:
                    lives.append(defaultdict(dict))
            for step in STEP.finditer(line):
                rank, number = int(step[1]), int(step[2])
                lives[begun[rank] - 1][number][rank] = step[3]
                if len(lives) == 1 and rank == kill_rank and number == KILLED_AT:
                    os.kill(pids[rank], signal.SIGKILL)
        assert process.wait(60) == 0, told
    finally:
        process.kill()
        process.wait()
    return lives, told


def check(lives: list[Life], told: str) -> None:
    assert len(lives) == 2, told
    assert min(lives[1]) == EVERY, "the second life begins at the last checkpoint"
    assert max(lives[1]) == STEPS - 1
    for ranks in (ranks for life in lives for ranks in life.values()):
        assert len(set(ranks.values())) == 1, "replicas differ"


@pytest.mark.timeout(240)
def test_a_killed_rank_comes_back_with_its_residuals_and_training_ends_the_same(tmp_path: Path) -> None:
    # Exact selection and no rounding: nothing depends on how DDP lays out its buckets, which it does anew in each life.
    (whole,), _ = train(tmp_path / "whole", None, "exactk:0.05")
    lives, told = train(tmp_path / "killed", 1, "exactk:0.05")
    check(lives, told)
    assert lives[1][STEPS - 1] == whole[STEPS - 1], "residuals were lost on the way"


@pytest.mark.timeout(240)
def test_on_ltp_a_killed_coordinator_comes_back_too(tmp_path: Path) -> None:
    check(*train(tmp_path, 0, "topk:0.05+int8", GRADWIRE_TRANSPORT="ltp", GRADWIRE_TRANSPORT_DEAD_AFTER="3"))


@pytest.mark.timeout(240)
def test_states_of_two_steps_are_an_error_on_every_rank(tmp_path: Path) -> None:
    """Somebody mixed two checkpoints: rank 1's residuals are those of another step."""
    train(tmp_path, None, "int8")
    (tmp_path / "16" / "rank1.pt").write_bytes((tmp_path / "8" / "rank1.pt").read_bytes())
    for name in ("24", "8"):
        for file in (tmp_path / name).iterdir():
            file.unlink()
    with pytest.raises(AssertionError) as failure:
        train(tmp_path, None, "int8")
    assert "the step of the state to load: rank 0 has 16, rank 1 has 8" in str(failure.value)
