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
STEPS, EVERY, KILLED_AT = 24, 8, 13
# Without it torch 2.13 keeps one store over restarts, in which gloo finds the addresses of the last life.
FRESH_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
STEP = re.compile(r"rank (\d) step (\d+) weights (\w+)")


def train(folder: Path, kill_rank: int | None, **settings: str) -> tuple[list[dict[int, dict[int, str]]], str]:
    """By life: step -> rank -> hash of the weights. Kills one rank once, when it has told the step."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GRADWIRE_")}
    words = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1", "--monitor-interval", "0.1", str(SCRIPT)]
    words += ["--steps", str(STEPS), "--every", str(EVERY), "--checkpoint", str(folder)]
    words += ["--pause", "0.1"] if kill_rank is not None else []
    process = subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *words],
        env={**kept, **FRESH_STORE, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **settings},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    lives: list[dict[int, dict[int, str]]] = []
    pids: dict[int, int] = {}
    told, begun = "", defaultdict[int, int](int)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            told += line
            if begin := re.match(r"rank (\d) is process (\d+), from step (\d+)", line):
                rank = int(begin[1])
                pids[rank], begun[rank] = int(begin[2]), begun[rank] + 1
                if len(lives) < begun[rank]:
                    lives.append(defaultdict(dict))
            elif step := STEP.match(line):
                rank, number = int(step[1]), int(step[2])
                lives[begun[rank] - 1][number][rank] = step[3]
                if len(lives) == 1 and rank == kill_rank and number == KILLED_AT:
                    os.kill(pids[rank], signal.SIGKILL)
        assert process.wait(60) == 0, told
    finally:
        process.kill()
        process.wait()
    return lives, told


@pytest.mark.timeout(240)
@pytest.mark.parametrize("transport", ["group", "ltp"])
def test_a_killed_rank_comes_back_with_its_residuals_and_training_ends_the_same(tmp_path: Path, transport: str) -> None:
    settings = {"GRADWIRE_TRANSPORT": transport, "GRADWIRE_TRANSPORT_DEAD_AFTER": "3"}
    (whole,), _ = train(tmp_path / "whole", None, **settings)
    lives, told = train(tmp_path / "killed", 1, **settings)
    assert len(lives) == 2, told
    assert min(lives[1]) == EVERY, "the second life begins at the last checkpoint"
    assert max(lives[1]) == STEPS - 1
    for life in (whole, *lives):
        for ranks in life.values():
            assert len(set(ranks.values())) == 1, "replicas differ"
    if transport == "group":  # on LTP what a step loses differs from run to run
        assert lives[1][STEPS - 1] == whole[STEPS - 1], "residuals were lost on the way"


@pytest.mark.timeout(240)
def test_states_of_two_steps_are_an_error_on_every_rank(tmp_path: Path) -> None:
    """Somebody mixed two checkpoints: rank 1's residuals are those of another step."""
    train(tmp_path, None)
    (tmp_path / "16" / "rank1.pt").write_bytes((tmp_path / "8" / "rank1.pt").read_bytes())
    for name in ("24", "8"):
        for file in (tmp_path / name).iterdir():
            file.unlink()
    with pytest.raises(AssertionError) as failure:
        train(tmp_path, None)
    assert "the step of the state to load: rank 0 has 16, rank 1 has 8" in str(failure.value)
