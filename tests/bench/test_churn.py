"""The churn benchmark: what counts as lost, which broken promises it finds, and a small run of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.churn_result import result_of
from harness.churn_run import Life, Log, script

ROOT = Path(__file__).parents[2]
EVERY = 4
NONE: Any = None


def life(rank: int, first: int, last: int, **more: Any) -> Life:
    """A process that reported the steps from `first` to `last`; equal digests at ends of rounds."""
    one = Life(rank, NONE, NONE, started=0.0, first=first == 1, joined=1.0, **more)
    one.steps = list(range(first, last + 1))
    one.digests = {step: step for step in one.steps if step % EVERY == 0}
    return one


def churned() -> Log:
    """Rank 1 dies after two steps of round 1, and a new process takes part from round 3 on."""
    lives = [life(0, 1, 16), life(1, 1, 6, killed=2.0), life(1, 13, 16)]
    rounds = {0: {(0, 1)}, 1: {(0,)}, 2: {(0,)}, 3: {(0, 1)}}
    return Log(lives, rounds, {number: float(number) for number in rounds}, 4.0)


def test_steps_since_the_last_end_of_a_round_are_lost_with_a_process() -> None:
    found = result_of(churned(), 2, EVERY)
    assert (found.made, found.useful, found.lost, found.most_lost) == (26, 24, 2, 2)
    assert (found.kills, found.rounds, found.possible, found.boundaries) == (1, 4, 32, 4)
    assert found.problems == ()


def broken(change: Any) -> str:
    log = churned()
    change(log)
    return " ".join(result_of(log, 2, EVERY).problems)


def test_every_broken_promise_is_found() -> None:
    def differ(log: Log) -> None:
        log.lives[2].digests[16] = 5

    def disagree(log: Log) -> None:
        log.contributors[3].add((0,))

    def lose_a_survivor(log: Log) -> None:
        log.contributors[2] = {(1,)}

    def lose_two_rounds(log: Log) -> None:
        log.contributors[0] = {(0,)}

    def lose_twice(log: Log) -> None:
        log.lives.append(life(1, 5, 6, killed=3.0))

    def count_twice(log: Log) -> None:
        log.lives.append(life(0, 1, 4))

    assert broken(differ) == "replicas differ after step 16"
    assert "round 3 has different contributors" in broken(disagree)
    assert "rank 0, not killed, lost steps of rounds [2]" in broken(lose_a_survivor)
    assert "rank 1, killed, lost steps of rounds [0, 1]" in broken(lose_two_rounds)
    assert "round 1 of rank 1 was lost twice" in broken(lose_twice)
    assert "round 0 of rank 0 counts twice" in broken(count_twice)


def test_a_script_is_that_of_its_seed() -> None:
    kills = script(60, 2, 60, seed=1)
    assert kills == script(60, 2, 60, seed=1) != script(60, 2, 60, seed=2)
    assert kills == sorted(kills, key=lambda one: (one.round, one.share))
    assert all(2 <= one.round < 62 and 0 <= one.share < 1 for one in kills)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_four_replicas_survive_three_kills(tmp_path: Path) -> None:
    options = ["--replicas", "4", "--kills", "3", "--rounds", "3", "--sync-every", "10", "--limit", "300"]
    command = [sys.executable, str(ROOT / "benchmarks" / "churn.py"), *options, "--out", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRADWIRE_")}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=350, check=False, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads((tmp_path / "churn.json").read_text())["result"]
    assert (found["kills"], found["problems"]) == (3, [])
    assert 0 <= found["lost"] <= 3 * 10
    assert found["lost"] + found["useful"] == found["made"]
    assert "every promise kept" in (tmp_path / "churn.md").read_text()
