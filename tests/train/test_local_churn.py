"""Local steps in a real job whose ranks are killed and restarted: a death costs its own round only."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from multiprocessing.process import BaseProcess
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any

import pytest
from torch.distributed import TCPStore

from tests.train import churn_jobs

WORLD = 3
CONFIG: dict[str, Any] = {
    "plan": "loadaware", "planning": {"elastic": True, "rejoin": 100.0}, "observe": {"verify": 1},
}  # fmt: skip


@dataclass(frozen=True)
class Start:
    """How a process of a rank is started. `sites` has a letter for each rank."""

    level: str
    dies_at: int | None = None
    rejoins: bool = False
    sites: str = "abc"
    voted: bool = False
    # A killed process is noticed by its closed connection; a live one may be silent for long on a busy machine.
    dead_after: float = 40.0


def train(rank: int, port: int, folder: str, how: Start) -> None:
    """The same script for the first process of a rank and for a restarted one."""
    import gradwire

    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "GRADWIRE_IFNAME": "lo", "GRADWIRE_SITE": how.sites[rank]}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(len(how.sites)), "GRADWIRE_REJOIN": str(int(how.rejoins))}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    # The store is not served by rank 0.
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    gradwire.init_process_group("gloo", timeout=timedelta(seconds=60))
    transport = {"kind": "tcp", "timeout": 60.0, "dead_after": how.dead_after, "connect": 10.0}
    job = churn_jobs.train_voted if how.voted else churn_jobs.train
    job(rank, {**CONFIG, "level": how.level, "transport": transport}, folder, how.dies_at)


def start(rank: int, port: int, folder: Path, how: Start) -> Any:
    context = multiprocessing.get_context("forkserver")  # which imports torch once
    context.set_forkserver_preload(["tests.train.churn_jobs"])
    process = context.Process(target=train, args=(rank, port, str(folder), how))
    process.start()
    return process


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("level", "dead"), [("sharedk:0.2+int8", 0), ("auto", 1)])
def test_a_rank_that_dies_costs_its_own_round_and_a_new_process_joins_at_the_end_of_one(
    tmp_path: Path, level: str, dead: int
) -> None:
    dies_at = 2 * churn_jobs.EVERY + 2
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks: list[BaseProcess] = [
        start(rank, store.port, tmp_path, Start(level, dies_at if rank == dead else None)) for rank in range(WORLD)
    ]
    try:
        ranks[dead].join(100)
        assert ranks[dead].exitcode == -SIGKILL
        ranks.append(start(dead, store.port, tmp_path, Start(level, rejoins=True)))
        for process in ranks:
            process.join(100)
        assert [process.exitcode for process in ranks] == [-SIGKILL if one == dead else 0 for one in range(3)] + [0]
    finally:
        for process in ranks:
            process.kill()
            process.join()
    check_journals(tmp_path, dead, dies_at)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("level", "dead"), [("int8", 0), ("auto", 1)])
def test_ranks_agree_on_rounds_of_changing_length_when_the_rank_that_proposes_them_dies(
    tmp_path: Path, level: str, dead: int
) -> None:
    """Rank 0 coordinates the plan and proposes lengths; then another rank does."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks: list[BaseProcess] = [
        start(rank, store.port, tmp_path, Start(level, 45 if rank == dead else None, voted=True))
        for rank in range(WORLD)
    ]
    try:
        ranks[dead].join(100)
        assert ranks[dead].exitcode == -SIGKILL
        ranks.append(start(dead, store.port, tmp_path, Start(level, rejoins=True, voted=True)))
        for process in ranks:
            process.join(100)
        assert [process.exitcode for process in ranks] == [-SIGKILL if one == dead else 0 for one in range(3)] + [0]
    finally:
        for process in ranks:
            process.kill()
            process.join()
    contributors = equal_replicas(tmp_path)
    assert contributors[max(contributors)] == {(0, 1, 2)}
    lengths: dict[int, set[int]] = defaultdict(set)
    for path in tmp_path.glob("*.jsonl"):
        for one in map(json.loads, path.read_text().splitlines()):
            if one.get("next"):
                lengths[one["step"]].add(one["next"])
    assert all(len(found) == 1 for found in lengths.values()), "all ranks know the same length of the next round"
    for before, after in pairwise(sorted(lengths)):
        assert after - before in lengths[before]
    assert set.union(*lengths.values()) == set(churn_jobs.LENGTHS)


def check_journals(folder: Path, dead: int, dies_at: int) -> None:
    last = int((folder / "last").read_text())
    found = {path: [json.loads(line) for line in path.read_text().splitlines()] for path in folder.glob("*.jsonl")}
    digests, contributors = defaultdict(set), defaultdict(set)
    joined = 0
    for path, facts in found.items():
        made = [one["step"] for one in facts if "step" in one]
        if int(path.name.split("-")[0]) != dead:
            assert made == list(range(1, last + 1)), "a rank that lives loses no step and repeats none"
        for one in facts:
            if one.get("digest") is not None:
                digests[one.get("step", one.get("joined"))].add(one["digest"])
            if "round" in one:
                contributors[one["round"]].add(tuple(one["ranks"]))
            joined = one.get("joined", joined)
    assert all(len(found) == 1 for found in digests.values()), "replicas are equal at every end of a round"
    assert sorted(digests) == list(range(churn_jobs.EVERY, last + 1, churn_jobs.EVERY))
    everybody, others = tuple(range(WORLD)), tuple(rank for rank in range(WORLD) if rank != dead)
    # The death is in the third round; the new process takes part in all rounds after the one at whose end it joined.
    alone = range(dies_at // churn_jobs.EVERY, joined // churn_jobs.EVERY)
    rounds = {number: {others if number in alone else everybody} for number in range(last // churn_jobs.EVERY)}
    assert contributors == rounds


@pytest.mark.timeout(240)
@pytest.mark.parametrize("dead", [2, 3])
def test_a_site_of_several_ranks_survives_the_death_of_its_leader_and_of_a_follower(tmp_path: Path, dead: int) -> None:
    """With the leader the whole site loses its round; with a follower, the follower's own."""
    dies_at = churn_jobs.EVERY + 2
    left = tuple(rank for rank in range(4) if rank != dead)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [
        start(rank, store.port, tmp_path, Start("int8", dies_at if rank == dead else None, sites="aabb"))
        for rank in range(4)
    ]
    try:
        wait_for(tmp_path, lambda found: any(number > 1 and set(one) == set(left) for number, one in found.items()))
        rounds = 1 + max(rounds_of(tmp_path)) + churn_jobs.MORE
        end_after(tmp_path, rounds)
        for process in ranks:
            process.join(200)
        assert [process.exitcode for process in ranks] == [-SIGKILL if rank == dead else 0 for rank in range(4)]
    finally:
        for process in ranks:
            process.kill()
            process.join()
    contributors = equal_replicas(tmp_path)
    assert contributors[0] == {(0, 1, 2, 3)}
    assert contributors[1] == {(0, 1) if dead == 2 else left}
    assert contributors[rounds - 1] == {left}


@pytest.mark.timeout(300)
def test_a_rank_that_was_silent_for_too_long_rejoins_with_the_weights_of_the_others(tmp_path: Path) -> None:
    """A suspended process is lost for the others. When it continues, its own round is lost, and no other."""
    silent = 1
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [start(rank, store.port, tmp_path, Start("int8", dead_after=4.0)) for rank in range(WORLD)]
    try:
        wait_for(tmp_path, lambda found: len(found) > 2)
        os.kill(ranks[silent].pid, SIGSTOP)
        wait_for(tmp_path, lambda found: any(silent not in one for one in found.values()))
        os.kill(ranks[silent].pid, SIGCONT)
        lost = max(number for number, one in rounds_of(tmp_path).items() if silent not in one)
        wait_for(tmp_path, lambda found: any(silent in one for number, one in found.items() if number > lost))
        end_after(tmp_path, 1 + max(rounds_of(tmp_path)) + churn_jobs.MORE)
        for process in ranks:
            process.join(100)
        assert [process.exitcode for process in ranks] == [0] * WORLD
    finally:
        for process in ranks:
            process.kill()
            process.join()
    contributors = equal_replicas(tmp_path)
    assert contributors[max(contributors)] == {(0, 1, 2)}


def rounds_of(folder: Path) -> dict[int, tuple[int, ...]]:
    """The contributors of each round so far."""
    lines = [line for path in folder.glob("*.jsonl") for line in path.read_text().splitlines(keepends=True)]
    facts = [json.loads(line) for line in lines if line.endswith("\n")]
    return {one["round"]: tuple(one["ranks"]) for one in facts if "round" in one}


def wait_for(folder: Path, condition: Callable[[dict[int, tuple[int, ...]]], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition(rounds_of(folder)):
        assert time.monotonic() < deadline, rounds_of(folder)
        time.sleep(0.1)


def end_after(folder: Path, rounds: int) -> None:
    (folder / "draft").write_text(str(rounds * churn_jobs.EVERY))
    (folder / "draft").rename(folder / "last")


def equal_replicas(folder: Path) -> dict[int, set[tuple[int, ...]]]:
    """Checks that digests are equal at every end of a round; returns the contributors of each."""
    digests, contributors = defaultdict(set), defaultdict(set)
    for path in folder.glob("*.jsonl"):
        for one in map(json.loads, path.read_text().splitlines()):
            if one.get("digest") is not None:
                digests[one["step"]].add(one["digest"])
            if "round" in one:
                contributors[one["round"]].add(tuple(one["ranks"]))
    assert all(len(found) == 1 for found in digests.values()), "replicas are equal at every end of a round"
    assert all(len(found) == 1 for found in contributors.values()), "all ranks know the same contributors"
    return contributors
