"""A rank is killed in a real job and started anew: the others take the new process in, and all end alike."""

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

from gradwire.config import resolve
from gradwire.errors import ConfigError, LinkError
from gradwire.sites import placeholder_group
from gradwire.sites.failover import LeaderRecord
from gradwire.sites.job_record import JobRecord, facts_of, find, keep
from tests.train import jobs

WORLD, MOST = 3, 3000
CONFIG: dict[str, Any] = {
    "level": "int8", "plan": "loadaware", "planning": {"elastic": True, "rejoin": 40.0}, "observe": {"verify": 5},
    "transport": {"kind": "ltp", "timeout": 30.0, "dead_after": 2.5, "connect": 5.0},
}  # fmt: skip


def train(rank: int, port: int, folder: str, level: str, dies: bool) -> None:
    """The same script whether it is started for the first time or anew."""
    import gradwire

    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "GRADWIRE_IFNAME": "lo", "RANK": str(rank), "WORLD_SIZE": str(WORLD)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    # The store is not served by rank 0.
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    gradwire.init_process_group("gloo", timeout=timedelta(seconds=60))
    assert (dist.get_rank(), dist.get_world_size()) == (rank, WORLD)
    jobs.elastic(rank, {**CONFIG, "level": level}, MOST, folder, dies)


def begin(rank: int, port: int, folder: Path, level: str, *, dies: bool = False, again: bool = False) -> BaseProcess:
    place = rank, port, str(folder), level, dies
    process = multiprocessing.get_context("spawn").Process(target=train, args=place)
    os.environ["GRADWIRE_REJOIN"] = "1" if again else "0"
    try:
        process.start()
    finally:
        del os.environ["GRADWIRE_REJOIN"]
    return process


@pytest.mark.timeout(240)
@pytest.mark.parametrize("level", ["int8", "auto"])
def test_a_killed_rank_that_is_started_anew_is_taken_in(tmp_path: Path, level: str) -> None:
    """With `auto`, levels change with plans; replicas are compared every fifth step on whoever is there."""
    dead = 0  # the coordinator, and so the harder case; benchmarks/faults.py has a worker
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [begin(rank, store.port, tmp_path, level, dies=rank == dead) for rank in range(WORLD)]
    try:
        ranks[dead].join(100)
        assert ranks[dead].exitcode == -SIGKILL
        ranks.append(begin(dead, store.port, tmp_path, level, again=True))
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
def absent() -> Iterator[None]:
    placeholder_group.register()
    dist.init_process_group(placeholder_group.NAME, store=HashStore(), rank=1, world_size=3)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ("int8", "only a job with a plan"),
        ({**CONFIG, "compress": {"warmup": 5}}, "compress.warmup"),
        (CONFIG, "no job to come back to"),
    ],
)
def test_a_job_that_cannot_take_it_in_is_named(config: Any, what: str, absent: None) -> None:
    import gradwire

    impatient = {"transport": {"kind": "ltp", "connect": 1.0}}
    with pytest.raises(gradwire.GradwireError, match=rf"GRADWIRE_REJOIN.*{what}"):
        gradwire.attach(
            DistributedDataParallel(torch.nn.Linear(2, 2)),
            config if isinstance(config, str) else {**config, **impatient},
        )


def test_without_a_job_there_is_nothing_to_come_back_to() -> None:
    with pytest.raises(LinkError, match=r"GRADWIRE_REJOIN.*no job"):
        find(HashStore(), "0", facts_of(resolve(CONFIG)), 0.2)


def test_a_job_with_other_settings_is_not_joined() -> None:
    store, heirloom = HashStore(), LeaderRecord(kind="ltp", secret="", places={}, plan="")
    keep(store, "0", JobRecord(heirloom, facts_of(resolve(CONFIG))))
    assert find(store, "0", facts_of(resolve(CONFIG)), 0.2).heirloom == heirloom
    with pytest.raises(ConfigError, match=r"level is 'fp16' here and 'int8' in the running job"):
        find(store, "0", facts_of(resolve({**CONFIG, "level": "fp16"})), 0.2)


@pytest.mark.parametrize("note", ["", "{}", '{"heirloom": 3, "facts": {}}', "\xff"])
def test_what_strangers_write_into_the_store_is_not_believed(note: str) -> None:
    store = HashStore()
    store.set("gradwire/standing/0", note)
    with pytest.raises(LinkError, match="cannot be read"):
        find(store, "0", {}, 0.2)
