"""A rank of a site is killed in a real job: the others continue and end with equal weights."""

from __future__ import annotations

import multiprocessing
import os
from datetime import timedelta
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import TCPStore

from tests.train import jobs

LEADER, FOLLOWER, STEPS = 2, 3, 120
CONFIG = {
    "level": "int8", "plan": "loadaware", "planning": {"elastic": True, "rejoin": 40.0},
    "transport": {"kind": "ltp", "timeout": 30.0, "dead_after": 2.5, "connect": 5.0},
}  # fmt: skip


def train(rank: int, port: int, folder: str, sites: str, dead: int) -> None:
    """`sites` has a letter for each rank; rank `dead` kills itself."""
    os.environ |= {"GRADWIRE_SITE": sites[rank], "GLOO_SOCKET_IFNAME": "lo", "GRADWIRE_IFNAME": "lo"}
    store = TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=len(sites), timeout=timedelta(seconds=60))
    jobs.elastic(rank, CONFIG, STEPS, folder, rank == dead)


def run(sites: str, dead: int, folder: Path) -> dict[int, dict[str, Any]]:
    """What all ranks but the dead one saved at the end."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    ranks = [
        context.Process(target=train, args=(rank, store.port, str(folder), sites, dead)) for rank in range(len(sites))
    ]
    for process in ranks:
        process.start()
    try:
        for process in ranks:
            process.join(150)
        assert [process.exitcode for process in ranks] == [-SIGKILL * (rank == dead) for rank in range(len(sites))]
    finally:
        for process in ranks:
            process.kill()
            process.join()
    return {rank: torch.load(folder / f"{rank}.pt") for rank in range(len(sites)) if rank != dead}


@pytest.mark.timeout(200)
def test_when_a_leader_is_killed_another_rank_of_its_site_leads(tmp_path: Path) -> None:
    ends = run("aabb", LEADER, tmp_path)
    assert [ends[rank]["made"] for rank in (0, 1)] == [STEPS, STEPS], "a step was lost"
    assert 8 < ends[3]["made"] < STEPS
    assert all(torch.equal(ends[rank]["weights"], ends[0]["weights"]) for rank in (1, 3))


@pytest.mark.timeout(200)
@pytest.mark.parametrize("sites", ["aabb", "abbb"])
def test_when_a_follower_is_killed_its_leader_continues_and_no_step_is_lost(tmp_path: Path, sites: str) -> None:
    ends = run(sites, FOLLOWER, tmp_path)
    assert [end["made"] for end in ends.values()] == [STEPS] * 3, "a step was lost"
    assert all(torch.equal(end["weights"], ends[0]["weights"]) for end in ends.values())
