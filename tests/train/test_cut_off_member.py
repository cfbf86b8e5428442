"""A member that was disconnected rejoins with the others' replica state, to the bit; leaving in order is no loss."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed import HashStore, PrefixStore, ProcessGroupGloo

from gradwire.errors import LinkError
from gradwire.level import Level
from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.membership import rejoin_requests
from gradwire.plan.membership.link_estimates import KnownNetwork
from gradwire.plan.membership.member import Member
from gradwire.plan.membership.replan import ReplanConfig
from gradwire.plan.planners.registry import make_plan
from gradwire.sites.local_reduce import LocalReducer
from gradwire.sites.replica_state import ReplicaState
from gradwire.tree.build import TreeParts, build_executor
from gradwire.tree.executor import TreeExecutor
from gradwire.tree.executor_config import ExecutorConfig
from gradwire.tree.plan_manager import PlanManagerConfig
from gradwire.tree.request import BucketRequest
from gradwire.types import Bucket
from tests.train.cables import QUICK, Cables, cabled_wires
from tests.tree.grid import LIMIT, RecordingListener

RANKS = 3
FIRST = 100  # the session's number of the first step, as after loading a checkpoint
STEP_START = threading.Lock()  # while it is held no rank begins a step


class Trainer:
    """One rank: a small model, an optimizer with state, one bucket a step, all in one thread."""

    def __init__(
        self, rank: int, executor: TreeExecutor, level: str, site: LocalReducer | None = None, rejoins: bool = True
    ) -> None:
        """Requests go to the executor, or to the site if there is one."""
        torch.manual_seed(0)
        self.rank, self.executor, self._level = rank, executor, Level.parse(level)
        self._site = site
        self.model = nn.Sequential(nn.Linear(40, 60), nn.BatchNorm1d(60), nn.Linear(60, 8))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.99)
        self.step, self.made = FIRST, list[int]()
        self.until: float = math.inf  # the first step that it does not make
        self.weights: dict[int, torch.Tensor] = {}
        self.error: BaseException | None = None
        self.residual = torch.zeros(sum(p.numel() for p in self.model.parameters()))
        if rejoins:
            self._set_replica_state(ReplicaState(self.model, [self.optimizer, self.schedule], self.set_step))

    def _set_replica_state(self, own: ReplicaState) -> None:
        state = own if self._site is None else self._site.set_replica_state(own)
        if self._site is None or self._site.leads:
            self.executor.set_replica_state(state)

    def _submit(self, request: BucketRequest) -> None:
        if self._site is None:
            self.executor.submit(request)
        else:
            self._site.submit(request).add_done_callback(lambda result: request.done(result.exception()))

    def set_step(self, step: int) -> None:
        self.step = step + 1

    def train(self) -> None:
        try:
            while self._has_steps():
                self._train_one()
        except LinkError as error:
            self.error = error

    def _has_steps(self) -> bool:
        with STEP_START:
            return self.step < self.until

    def _train_one(self) -> None:
        draw = torch.Generator().manual_seed(1000 * self.step + self.rank)
        self.optimizer.zero_grad()
        self.model(torch.randn(16, 40, generator=draw)).square().mean().backward()
        gradient = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        done, result = threading.Event(), list[BaseException | None]()
        bucket = Bucket(0, self.step, gradient.numel(), 4, (), True)
        self.step += 1

        def report(error: BaseException | None) -> None:
            result.append(error)
            done.set()

        self._submit(BucketRequest(bucket, self._level, gradient, self.residual, report))
        assert done.wait(LIMIT), "a bucket had no result in time"
        if result[0] is not None:
            raise result[0]
        for parameter, part in zip(
            self.model.parameters(), gradient.split([p.numel() for p in self.model.parameters()]), strict=True
        ):
            parameter.grad.copy_(part.view_as(parameter))
        self.optimizer.step()
        self.schedule.step()
        self.made.append(self.step - 1)
        self.weights[self.step - 1] = torch.cat([p.detach().flatten() for p in self.model.parameters()])
        time.sleep(0.01)


class TrainingJob:
    """Trainers on wires that can be cut. They train until the test ends them, so no test depends on their speed."""

    def __init__(self, trainers: list[Trainer], cables: Cables) -> None:
        self.trainers, self.cables = trainers, cables
        self.threads: list[threading.Thread] = []
        self.listeners: list[RecordingListener] = []

    def start(self) -> None:
        self.threads = [threading.Thread(target=one.train) for one in self.trainers]
        for thread in self.threads:
            thread.start()

    def reach(self, rank: int, step: int) -> None:
        deadline = time.monotonic() + LIMIT
        while self.trainers[rank].step < step and time.monotonic() < deadline:
            time.sleep(0.005)
        assert self.trainers[rank].step >= step, "no progress"

    def disconnect(self, member: int, rank: int) -> int:
        """Cuts a member's cables; returns the step of this rank at that time."""
        self.cables.cut = {member}
        return self.trainers[rank].step

    def reconnect(self, *ranks: int) -> None:
        """Restores the cables, and waits until each of these ranks made a step that no rank had made before."""
        self.cables.cut = set()
        for rank in ranks:
            self.reach(rank, max(one.step for one in self.trainers) + 1)

    def end(self) -> int:
        """All ranks make a few more steps and end at the same one, which is returned and not made."""
        with STEP_START:
            last = max(one.step for one in self.trainers) + 10
            for one in self.trainers:
                one.until = last
        self.join()
        return last

    def join(self) -> None:
        for thread in self.threads:
            thread.join(LIMIT)
            assert not thread.is_alive(), "a rank hangs"


@contextmanager
def tree_executors(
    members: int, rejoin: float = LIMIT
) -> Iterator[tuple[list[TreeExecutor], list[RecordingListener], Cables]]:
    matrix = Matrix.of(np.full((members, members), 1e7), 0.02)
    work = ReductionJob(4 * 3000, 32 << 10)
    replan = lambda members, version: make_plan(matrix.only(members), work, "loadaware", version)  # noqa: E731
    with cabled_wires(members) as (wires, cables):
        plan = make_plan(matrix, work, "loadaware")
        config = ExecutorConfig(timeout=LIMIT, elastic=True, rejoin=rejoin)
        planning = PlanManagerConfig(job=work, replan=ReplanConfig("loadaware"))
        listeners = [RecordingListener() for _ in wires]
        executors = [
            build_executor(
                TreeParts(
                    wire=wire,
                    member=Member(wire.rank, range(members), plan, replan),
                    config=config,
                    listener=listener,
                    planning=(KnownNetwork(matrix, aware=False), planning),
                )
            )
            for wire, listener in zip(wires, listeners, strict=True)
        ]
        for executor in executors:
            executor.start()
        try:
            yield executors, listeners, cables
        finally:
            for executor in executors:
                executor.close()


@contextmanager
def training(level: str = "off", rejoin: float = LIMIT, rejoins: bool = True) -> Iterator[TrainingJob]:
    with tree_executors(RANKS, rejoin) as (executors, listeners, cables):
        trainers = [Trainer(rank, one, level, rejoins=rejoins) for rank, one in enumerate(executors)]
        with ending(trainers, cables) as three:
            three.listeners = listeners
            yield three


@contextmanager
def ending(trainers: list[Trainer], cables: Cables) -> Iterator[TrainingJob]:
    """A job that ends with the test, also when the test failed."""
    try:
        yield TrainingJob(trainers, cables)
    finally:
        for one in trainers:
            one.until = 0


@contextmanager
def two_sites() -> Iterator[TrainingJob]:
    """Ranks 0 and 1 form one site, 2 and 3 the other; gloo inside, threads instead of processes."""
    store = HashStore()

    def group(site: int, place: int, name: str, out: list[Any]) -> None:
        out.append(ProcessGroupGloo(PrefixStore(f"{site}/{name}", store), place, 2, timedelta(seconds=LIMIT)))

    with tree_executors(2) as (executors, _, cables):
        made: list[list[list[Any]]] = [[[], []] for _ in range(4)]
        for kind, name in enumerate(("sum", "share")):
            threads = [
                threading.Thread(target=group, args=(rank // 2, rank % 2, name, made[rank][kind])) for rank in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(LIMIT)
        sites = [
            LocalReducer([own[0] for own in made[rank]], executors[rank // 2].submit if rank % 2 == 0 else None)
            for rank in range(4)
        ]
        trainers = [Trainer(rank, executors[rank // 2], "off", sites[rank]) for rank in range(4)]
        with ending(trainers, cables) as four:
            yield four
        for site in sites:
            site.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that was left out asks to rejoin sooner: round trips take no time here."""
    monkeypatch.setattr(rejoin_requests, "ASK", 0.2)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


@pytest.mark.parametrize(("rank", "level"), [(2, "off"), (0, "int8"), (1, "sharedk:0.2")])
def test_a_rank_that_was_disconnected_rejoins_with_the_state_of_the_others(rank: int, level: str) -> None:
    """Rank 0 is the coordinator."""
    with training(level) as three:
        three.start()
        three.reach(rank, FIRST + 10)
        cut = three.disconnect(rank, rank)
        others = [one for one in range(RANKS) if one != rank]
        three.reach(others[0], cut + 20)
        away = three.trainers[rank].step
        three.reconnect(rank)
        last = three.end()
        assert [one.error for one in three.trainers] == [None] * RANKS
        rejoined = three.trainers[rank]
        assert cut <= away < cut + 10, "it continued alone"
        assert three.listeners[rank].rejoins
        assert len(rejoined.made) < last - FIRST - 10
        assert all(three.trainers[one].made == list(range(FIRST, last)) for one in others), "a step was lost"
        for step in rejoined.made:
            for other in others:
                same = torch.equal(three.trainers[other].weights[step], rejoined.weights[step])
                # The others may have repeated its last step before the cut without it.
                assert same or (step < away and step + 1 not in rejoined.made)
        assert rejoined.made[-1] == last - 1
        assert {one.executor.member.members for one in three.trainers} == {tuple(range(RANKS))}


def lose_rank_2(three: TrainingJob) -> tuple[int, int]:
    """Disconnect rank 2 for good, until it has ended; the steps of the cut and of the end."""
    three.start()
    three.reach(2, FIRST + 10)
    cut = three.disconnect(2, 2)
    three.threads[2].join(LIMIT)
    three.reach(0, cut + 20)
    return cut, three.end()


def test_a_disconnected_rank_gives_up_after_the_rejoin_time_and_never_continues_alone() -> None:
    with training(rejoin=1.5) as three:
        cut, last = lose_rank_2(three)
        assert isinstance(three.trainers[2].error, LinkError)
        assert "planning.rejoin" in str(three.trainers[2].error)
        assert len(three.trainers[2].made) < cut - FIRST + 10
        assert [one.made for one in three.trainers[:2]] == [list(range(FIRST, last))] * 2


def test_without_a_replica_state_a_disconnected_rank_fails_at_once() -> None:
    with training(rejoins=False) as three:
        _, last = lose_rank_2(three)
        assert "not enough" in str(three.trainers[2].error)
        assert [one.made for one in three.trainers[:2]] == [list(range(FIRST, last))] * 2


def test_when_all_ranks_were_disconnected_from_each_other_all_continue() -> None:
    with training() as three:
        three.start()
        three.reach(0, FIRST + 10)
        three.cables.cut = {0, 1, 2}
        time.sleep(1.5 * QUICK.dead_after)
        three.reconnect(0, 1, 2)  # two of them may continue before the third rejoins
        last = three.end()
        assert [one.error for one in three.trainers] == [None] * RANKS
        final = [one.weights[last - 1] for one in three.trainers]
        assert all(torch.equal(final[0], other) for other in final)


def test_all_ranks_of_a_disconnected_site_rejoin() -> None:
    with two_sites() as four:
        four.start()
        four.reach(2, FIRST + 10)
        cut = four.disconnect(1, 2)  # the second site, as the plan counts members
        four.reach(0, cut + 20)
        four.reconnect(2)
        last = four.end()
        assert [one.error for one in four.trainers] == [None] * 4
        assert all(one.made == list(range(FIRST, last)) for one in four.trainers[:2]), "a step was lost"
        for rejoined in four.trainers[2:]:
            assert len(rejoined.made) < last - FIRST - 10
            final = [one.weights[last - 1] for one in (four.trainers[0], rejoined)]
            assert torch.equal(*final)


@pytest.mark.parametrize("first", [0, 2])
def test_leaving_at_the_end_is_neither_a_loss_nor_a_regroup(first: int) -> None:
    with training() as three:
        three.start()
        three.reach(0, FIRST + 5)
        three.end()
        three.trainers[first].executor.close()
        time.sleep(1.5 * QUICK.dead_after)  # longer than it takes to notice a loss
        left = [one for one in three.trainers if one.executor.member.rank != first]
        assert [three.listeners[one.rank].losses for one in left] == [[], []]
        assert {one.executor.member.epoch for one in left} == {0}
        assert all(first in one.executor.frame_io.left for one in left)


def test_the_others_continue_at_once_without_a_rank_that_left() -> None:
    with training() as three:
        for one, steps in zip(three.trainers, (10, 30, 30), strict=True):
            one.until = FIRST + steps
        three.start()
        three.threads[0].join(LIMIT)
        three.trainers[0].executor.close()
        three.join()
        assert [one.error for one in three.trainers] == [None] * RANKS
        assert torch.equal(three.trainers[1].weights[FIRST + 29], three.trainers[2].weights[FIRST + 29])
        assert three.trainers[1].executor.member.members == (1, 2)
