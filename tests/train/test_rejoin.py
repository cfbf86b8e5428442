"""A rank is killed in a real job and restarted: the new process rejoins, and all end with equal weights."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore, TCPStore
from torch.nn.parallel import DistributedDataParallel

from gradwire.sites import placeholder_group
from tests.train import jobs

WORLD, MOST = 3, 3000
CONFIG: dict[str, Any] = {
    "level": "int8", "plan": "loadaware", "planning": {"elastic": True, "rejoin": 40.0}, "observe": {"verify": 5},
    "transport": {"kind": "ltp", "timeout": 30.0, "dead_after": 2.5, "connect": 5.0},
}  # fmt: skip


def train(rank: int, port: int, folder: str, level: str, dies: bool) -> None:
    """The same script for the first process of a rank and for a restarted one."""
    import gradwire

    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "GRADWIRE_IFNAME": "lo", "RANK": str(rank), "WORLD_SIZE": str(WORLD)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    # The store is not served by rank 0.
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    gradwire.init_process_group("gloo", timeout=timedelta(seconds=60))
    assert (dist.get_rank(), dist.get_world_size()) == (rank, WORLD)
    jobs.elastic(rank, {**CONFIG, "level": level}, MOST, folder, dies)


def start(rank: int, port: int, folder: Path, level: str, *, dies: bool = False, rejoins: bool = False) -> BaseProcess:
    arguments = rank, port, str(folder), level, dies
    process = multiprocessing.get_context("spawn").Process(target=train, args=arguments)
    os.environ["GRADWIRE_REJOIN"] = "1" if rejoins else "0"
    try:
        process.start()
    finally:
        del os.environ["GRADWIRE_REJOIN"]
    return process


@pytest.mark.timeout(240)
@pytest.mark.parametrize("level", ["int8", "auto"])
def test_a_killed_rank_that_is_restarted_rejoins(tmp_path: Path, level: str) -> None:
    """With `auto`, levels change with plans. The ranks that take part compare their replicas every fifth step."""
    dead = 0  # the coordinator, which is the harder case; benchmarks/faults.py kills a worker
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [start(rank, store.port, tmp_path, level, dies=rank == dead) for rank in range(WORLD)]
    try:
        ranks[dead].join(100)
        assert ranks[dead].exitcode == -SIGKILL
        ranks.append(start(dead, store.port, tmp_path, level, rejoins=True))
        for process in ranks:
            process.join(120)
        assert [process.exitcode for process in ranks] == [-SIGKILL if rank == dead else 0 for rank in range(WORLD)] + [
            0
        ]
    finally:
        for process in ranks:
            process.kill()
            process.join()
    ends = {rank: torch.load(tmp_path / f"{rank}.pt") for rank in range(WORLD)}
    steps = int((tmp_path / "last").read_text())
    assert {end["made"] for rank, end in ends.items() if rank != dead} == {steps}, "a step was lost"
    assert jobs.MORE < ends[dead]["made"] < steps - 8
    assert all(torch.equal(end["weights"], ends[dead]["weights"]) for end in ends.values())


@pytest.fixture
def placeholder() -> Iterator[None]:
    placeholder_group.register()
    dist.init_process_group(placeholder_group.NAME, store=HashStore(), rank=1, world_size=3)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("rank", [-1, 4])
def test_a_rank_that_the_job_never_had_cannot_rejoin(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import gradwire

    monkeypatch.setenv("GRADWIRE_REJOIN", "1")
    monkeypatch.delenv("GRADWIRE_BACKEND", raising=False)
    with pytest.raises(gradwire.ConfigError, match=rf"RANK is {rank} and WORLD_SIZE 4; give this process the lost"):
        gradwire.init_process_group("gloo", store=HashStore(), rank=rank, world_size=4)


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ("int8", "only a job with a plan"),
        ({**CONFIG, "compress": {"warmup": 5}}, "compress.warmup"),
        (CONFIG, "no job to rejoin"),
    ],
)
def test_the_error_says_why_a_rank_cannot_rejoin(config: Any, what: str, placeholder: None) -> None:
    import gradwire

    short_wait = {"transport": {"kind": "ltp", "connect": 1.0}}
    with pytest.raises(gradwire.GradwireError, match=rf"GRADWIRE_REJOIN.*{what}"):
        gradwire.attach(
            DistributedDataParallel(torch.nn.Linear(2, 2)),
            config if isinstance(config, str) else {**config, **short_wait},
        )
