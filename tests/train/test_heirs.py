"""A leader of a site is killed in a real job: its neighbour speaks for it, and those left end with equal weights."""

from __future__ import annotations

import multiprocessing
import os
from datetime import timedelta
from pathlib import Path
from signal import SIGKILL

import pytest
import torch
import torch.distributed as dist
from torch.distributed import TCPStore

from tests.train import jobs

WORLD, LEADER, STEPS = 4, 2, 120
CONFIG = {
    "level": "int8", "plan": "loadaware", "planning": {"elastic": True, "rejoin": 40.0},
    "transport": {"kind": "ltp", "timeout": 30.0, "dead_after": 2.5, "connect": 5.0},
}  # fmt: skip


def train(rank: int, port: int, folder: str) -> None:
    """Ranks 0 and 1 are one site, 2 and 3 the other; rank 2 kills itself."""

    os.environ |= {"GRADWIRE_SITE": "ab"[rank // 2], "GLOO_SOCKET_IFNAME": "lo", "GRADWIRE_IFNAME": "lo"}
    store = TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60))
    jobs.elastic(rank, CONFIG, STEPS, folder, rank == LEADER)


@pytest.mark.timeout(150)
def test_when_a_leader_is_killed_its_neighbour_takes_its_place(tmp_path: Path) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=train, args=(rank, store.port, str(tmp_path))) for rank in range(WORLD)]
    for process in ranks:
        process.start()
    try:
        for process in ranks:
            process.join(120)
        assert [process.exitcode for process in ranks] == [0, 0, -SIGKILL, 0]
    finally:
        for process in ranks:
            process.kill()
            process.join()
    ends = {rank: torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1, 3)}
    assert [ends[rank]["made"] for rank in (0, 1)] == [STEPS, STEPS], "a step was lost"
    assert 8 < ends[3]["made"] < STEPS
    assert all(torch.equal(ends[rank]["weights"], ends[0]["weights"]) for rank in (1, 3))
