"""A job with local steps grows: a process that was not there at the start joins at an end of a round, and may leave."""

from __future__ import annotations

import itertools
import multiprocessing
import os
from dataclasses import dataclass, field, replace
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import TCPStore

from tests.train import churn_jobs
from tests.train.test_local_churn import end_after, equal_replicas, rounds_of, wait_for

MOST = 5
CONFIG: dict[str, Any] = {
    "plan": "loadaware", "planning": {"elastic": True, "rejoin": 100.0, "max_ranks": MOST}, "observe": {"verify": 1},
    # A closed connection is noticed at once; a live process may be silent for long on a busy machine.
    "transport": {"kind": "tcp", "timeout": 60.0, "dead_after": 40.0, "connect": 10.0},
}  # fmt: skip


@dataclass(frozen=True)
class Start:
    """How a process is started: how it joins, its settings beside those of the job, and its model's width."""

    rejoin: str = "0"
    settings: dict[str, Any] = field(default_factory=dict)
    width: int = 64
    secret: str = "a secret of the job's own"


def train(rank: int, world_size: int, port: int, folder: str, how: Start) -> None:
    """The same script for the ranks of the start, `world_size` of them, and for those that join."""
    import gradwire

    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "GRADWIRE_IFNAME": "lo", "RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": str(max(world_size, rank + 1)), "GRADWIRE_REJOIN": how.rejoin}
    os.environ["GRADWIRE_SECRET"] = how.secret
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    # The store is not served by rank 0.
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    try:
        gradwire.init_process_group("gloo", timeout=timedelta(seconds=60))
        churn_jobs.train_until_told(dist.get_rank(), {**CONFIG, **how.settings}, folder, how.width)
    except gradwire.GradwireError as error:
        (Path(folder) / f"error-{os.getpid()}").write_text(f"{type(error).__name__}: {error}")
        raise


class Job:
    """Processes of ranks that find each other through a store that none of them serves; all are gone at the end."""

    def __init__(self, folder: Path, world_size: int, **settings: Any) -> None:
        self._folder, self._settings, self._world_size = folder, settings, world_size
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.processes: list[BaseProcess] = []

    def __enter__(self) -> Job:
        for rank in range(self._world_size):
            self.start(rank, "0")
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.join()

    def start(self, rank: int, rejoin: str = "1") -> None:
        self.processes.append(self.spawn(rank, Start(rejoin, self._settings)))

    def spawn(self, rank: int, how: Start) -> BaseProcess:
        context = multiprocessing.get_context("forkserver")  # which imports torch once
        context.set_forkserver_preload(["tests.train.churn_jobs"])
        arguments = rank, self._world_size, self._store.port, str(self._folder), how
        process = context.Process(target=train, args=arguments)
        process.start()
        return process

    def error_of(self, rank: int, how: Start) -> str:
        """Why a process does not join."""
        process = self.spawn(rank, replace(how, rejoin="1", settings={**self._settings, **how.settings}))
        process.join(60)
        written = self._folder / f"error-{process.pid}"
        ended, _ = process.exitcode is not None, process.kill()
        process.join()
        assert ended, "it neither joins nor ends"
        return written.read_text()

    def await_rounds_of(self, ranks: tuple[int, ...]) -> None:
        """Three more rounds whose means are of exactly these ranks."""
        before = len(rounds_of(self._folder))
        wait_for(self._folder, lambda found: sum(found[one] == ranks for one in sorted(found)[before:]) >= 3)

    def leave(self, rank: int) -> None:
        (self._folder / f"leave-{rank}").touch()

    def end(self) -> None:
        end_after(self._folder, 1 + max(rounds_of(self._folder)) + churn_jobs.MORE)
        for process in self.processes:
            process.join(100)
        assert [process.exitcode for process in self.processes] == [0] * len(self.processes)

    def contributors(self) -> list[tuple[int, ...]]:
        """Of each round, in order, each one once. All ranks knew the same, and had equal replicas."""
        found = equal_replicas(self._folder)
        rounds = [next(iter(found[number])) for number in sorted(found)]
        return [ranks for ranks, _ in itertools.groupby(rounds)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("level", ["sharedk:0.2+int8", "auto"])
def test_a_job_of_three_ranks_grows_to_four_and_goes_on_with_three_when_one_leaves(tmp_path: Path, level: str) -> None:
    """The one that leaves is the first rank, which coordinates the plan."""
    with Job(tmp_path, 3, level=level) as job:
        job.await_rounds_of((0, 1, 2))
        job.start(3)
        job.await_rounds_of((0, 1, 2, 3))
        job.leave(0)
        job.await_rounds_of((1, 2, 3))
        job.end()
    assert job.contributors() == [(0, 1, 2), (0, 1, 2, 3), (1, 2, 3)]


@pytest.mark.timeout(300)
def test_a_job_of_one_rank_grows_and_a_place_that_was_left_is_taken_again(tmp_path: Path) -> None:
    with Job(tmp_path, 1, level="int8") as job:
        job.await_rounds_of((0,))
        job.start(2)
        job.await_rounds_of((0, 2))
        job.leave(2)
        job.await_rounds_of((0,))
        (tmp_path / "leave-2").unlink()
        job.start(2)
        job.start(0, "any")  # its number is ignored: 1 is the lowest that is free
        job.await_rounds_of((0, 1, 2))
        job.end()
    rounds = job.contributors()
    assert rounds[:3] == [(0,), (0, 2), (0,)]
    assert rounds[-1] == (0, 1, 2)


@pytest.mark.timeout(300)
def test_a_process_that_does_not_fit_gets_an_error_and_the_job_goes_on_undisturbed(tmp_path: Path) -> None:
    planning = {**CONFIG["planning"], "rejoin": 8.0}
    transport = {**CONFIG["transport"], "connect": 2.0}
    with Job(tmp_path, 2, level="int8", planning=planning, transport=transport) as job:
        job.await_rounds_of((0, 1))
        assert "RANK is 1, and a live process runs as rank 1 of this job" in job.error_of(1, Start())
        assert "level is 'fp16' here and 'int8' in the running job" in job.error_of(
            2, Start(settings={"level": "fp16"})
        )
        assert "the model's trained values is" in job.error_of(2, Start(width=65))
        assert "WORLD_SIZE is '9' here and '5' in the running job" in job.error_of(8, Start())
        wrong = job.error_of(2, Start(secret="another secret than the job's"))
        assert "LinkError: rank 2 could not join within 8 s (planning.rejoin)" in wrong
        assert "its GRADWIRE_SECRET differs from this rank's" in wrong
        job.start(2)
        job.await_rounds_of((0, 1, 2))
        job.end()
    assert job.contributors() == [(0, 1), (0, 1, 2)]
