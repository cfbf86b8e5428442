"""Churn run: replicas of one job as processes of this machine, which a script kills and restarts.

1. all replicas start; a store that none of them serves outlives each
2. for each kill of the script: when the job has ended the kill's round, and the given share of a round later, one
   replica that takes part is killed (SIGKILL); a new process replaces it at once
3. when all kills are done and all new processes have joined, the replicas are told a step at which all end
4. what the replicas reported becomes a `Log`

Everything ends: the run has a deadline, after which it is an error, and no process is left behind.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from torch.distributed import TCPStore

from harness import churn_job

# Rounds between telling the replicas the last step and that step.
REST = 4
# No kill while more than this share of the replicas is not there, so that the others are always a quorum.
MOST_DOWN = 0.25


@dataclass(frozen=True, slots=True)
class Kill:
    """After the end of this round and a share of the next one."""

    round: int
    share: float


def script(kills: int, first: int, rounds: int, seed: int) -> list[Kill]:
    """Kills at random times of the rounds from `first` on, in their order."""
    draw = random.Random(seed)
    times = sorted(draw.uniform(first, first + rounds) for _ in range(kills))
    return [Kill(int(at), at % 1.0) for at in times]


@dataclass(slots=True)
class Life:
    """One process of a rank. `steps` are those it reported, `digests` of weights and buffers by step; times are
    seconds since the start of the run."""

    rank: int
    process: BaseProcess
    pipe: Connection
    started: float
    first: bool
    joined: float | None = None
    killed: float | None = None
    joined_step: int = 0
    steps: list[int] = field(default_factory=list)
    digests: dict[int, int] = field(default_factory=dict)
    accuracy: float | None = None

    @property
    def present(self) -> bool:
        return self.joined is not None and self.killed is None


@dataclass(slots=True)
class Log:
    """Of a whole run. `contributors` by round, as each process that ended the round reported them."""

    lives: list[Life] = field(default_factory=list)
    contributors: dict[int, set[tuple[int, ...]]] = field(default_factory=dict)
    # When the first replica reported the end of a round.
    ended: dict[int, float] = field(default_factory=dict)
    seconds: float = 0.0


class ChurnRun:
    """Runs one job. `job` is what churn_job expects."""

    def __init__(self, world_size: int, job: Mapping[str, Any], kills: list[Kill], seed: int, limit: float) -> None:
        self._world_size, self._job, self._kills = world_size, job, kills
        self._every = int(job["sync_every"])
        self._draw, self._limit = random.Random(seed), limit
        # This process has no threads, so that replicas can be forks of it: torch is imported once.
        self._context = multiprocessing.get_context("fork")
        self._began = time.monotonic()
        self._current: dict[int, Life] = {}
        self._last: int | None = None
        self.log = Log()

    def run(self) -> Log:
        ours, theirs = self._context.Pipe()
        store = self._context.Process(target=_serve_store, args=(theirs,), daemon=True)
        store.start()
        try:
            self._environment = {"WORLD_SIZE": str(self._world_size), "GRADWIRE_STORE": f"127.0.0.1:{ours.recv()}"}
            for rank in range(self._world_size):
                self._start(rank, first=True)
            while any(life.accuracy is None for life in self._current.values()):
                self._poll()
            for life in self._current.values():
                life.process.join(max(0.0, self._limit - self._now))
        finally:
            for process in (*(life.process for life in self.log.lives), store):
                process.kill()
                process.join()
        self.log.seconds = self._now
        return self.log

    @property
    def _now(self) -> float:
        return time.monotonic() - self._began

    def _start(self, rank: int, first: bool) -> None:
        ours, theirs = self._context.Pipe()
        environment = {**self._environment, "GRADWIRE_REJOIN": str(int(not first))}
        process = self._context.Process(target=churn_job.run, args=(rank, environment, self._job, theirs), daemon=True)
        process.start()
        theirs.close()
        self._current[rank] = life = Life(rank, process, ours, self._now, first)
        self.log.lives.append(life)

    def _poll(self) -> None:
        if self._now > self._limit:
            raise RuntimeError(f"the run did not end within {self._limit:g} s: {self._state()}")
        pipes = {life.pipe: life for life in self._current.values()}
        for pipe in wait(list(pipes), timeout=0.05):
            assert isinstance(pipe, Connection)
            for kind, facts in _received(pipe, pipes[pipe]):
                self._take(pipes[pipe], kind, facts)
        self._kill_due()
        if self._last is None and not self._kills and all(life.present for life in self._current.values()):
            self._end()

    def _state(self) -> str:
        ranks = {rank: life.steps[-1] if life.steps else "joining" for rank, life in self._current.items()}
        return f"{len(self._kills)} kills left, last steps by rank {ranks}"

    def _take(self, life: Life, kind: str, facts: Any) -> None:
        match kind:
            case "joined":
                life.joined, (life.joined_step, life.digests[facts[0]]) = self._now, facts
            case "step":
                life.steps.append(facts[0])
                if facts[1] is not None:
                    life.digests[facts[0]] = facts[1]
            case "round":
                number, ranks = facts
                self.log.contributors.setdefault(number, set()).add(tuple(ranks))
                self.log.ended.setdefault(number, self._now)
            case "ended":
                life.accuracy = facts
            case "failed":
                raise RuntimeError(f"rank {life.rank} failed at step {life.steps[-1:]}: {facts}")

    # ---- kills ---------------------------------------------------------------------------------------------------
    def _kill_due(self) -> None:
        present = [life for life in self._current.values() if life.present]
        while self._kills and self._due(self._kills[0]) and len(present) > self._world_size * (1 - MOST_DOWN):
            del self._kills[0]
            life = present.pop(self._draw.randrange(len(present)))
            life.process.kill()
            life.killed = self._now
            life.process.join()
            for kind, facts in _received(life.pipe, life):
                self._take(life, kind, facts)
            self._start(life.rank, first=False)

    def _due(self, kill: Kill) -> bool:
        ended = self.log.ended
        if kill.round - 1 not in ended:
            return False
        length = ended[kill.round - 1] - ended.get(kill.round - 2, ended[kill.round - 1])
        return self._now >= ended[kill.round - 1] + kill.share * length

    def _end(self) -> None:
        self._last = self._every * (max(self.log.ended) + 1 + REST)
        for life in self._current.values():
            life.pipe.send(self._last)


def _serve_store(pipe: Connection) -> None:
    """In a process of its own, which no kill hits."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipe.send(store.port)
    pipe.poll(None)  # until the parent ends


def _received(pipe: Connection, life: Life) -> Iterator[tuple[str, Any]]:
    """What a process reported; a killed one may have left a part of a message."""
    try:
        while pipe.poll():
            yield pipe.recv()
    except (EOFError, OSError) as error:
        if life.accuracy is None and life.killed is None:
            life.process.join(10)
            raise RuntimeError(f"rank {life.rank} ended with exit code {life.process.exitcode}") from error
