"""A member that was cut off comes back as what the others are, to the bit; a goodbye is no loss."""

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

from gradwire.clock import MonotonicClock
from gradwire.errors import ConfigError, IntegrityError, LinkError
from gradwire.level import Level
from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.membership import member as policy
from gradwire.plan.membership.member import Member
from gradwire.plan.membership.replan import ReplanConfig
from gradwire.plan.planners.registry import make_plan
from gradwire.sites.local_reduce import LocalReducer
from gradwire.sites.replica_state import BucketLayout, ReplicaState
from gradwire.tree.executor import ExecutorConfig, TreeExecutor
from gradwire.tree.frame_io import FrameIO
from gradwire.tree.plan_manager import PlanManager, PlanManagerConfig
from gradwire.tree.request import BucketRequest
from gradwire.tree.state_transfer import FRAME, StateReceiver, StateSender
from gradwire.types import Bucket
from tests.train.cables import QUICK, Cables, cabled_wires
from tests.tree.grid import LIMIT, FakeNet

RANKS = 3
FIRST = 100  # the session's number of the first step, as after loading a checkpoint


TURN = threading.Lock()  # whoever holds it keeps all ranks from beginning a step


class Trainer:
    """One rank: a small model with an optimizer that remembers, one bucket a step, everything in a thread."""

    def __init__(self, rank: int, executor: TreeExecutor, level: str, door: Any = None, returns: bool = True) -> None:
        """`door` is what takes parcels and estates: the walker, unless there is a site in between."""
        torch.manual_seed(0)
        self.rank, self.executor, self._level = rank, executor, Level.parse(level)
        self._door = door or executor
        self.model = nn.Sequential(nn.Linear(40, 60), nn.BatchNorm1d(60), nn.Linear(60, 8))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.99)
        self.step, self.made = FIRST, list[int]()
        self.until: float = math.inf  # the step that it does not make any more
        self.weights: dict[int, torch.Tensor] = {}
        self.error: BaseException | None = None
        self.residual = torch.zeros(sum(p.numel() for p in self.model.parameters()))
        self.losses: list[int] = []
        self.backs: list[str] = []
        if door is None:
            executor.on_loss = lambda peer, why: self.losses.append(peer)
            executor.on_rejoin = lambda rank, how: self.backs.append(how)
        self.estate = ReplicaState(self.model, [self.optimizer, self.schedule], self.jump)
        if returns:
            handed = self._door.hand_over(self.estate)
            if door is not None and door.leads:
                executor.set_replica_state(handed)

    def jump(self, step: int) -> None:
        self.step = step + 1

    def train(self) -> None:
        try:
            while self._goes_on():
                self._train_one()
        except LinkError as error:
            self.error = error

    def _goes_on(self) -> bool:
        with TURN:
            return self.step < self.until

    def _train_one(self) -> None:
        draw = torch.Generator().manual_seed(1000 * self.step + self.rank)
        self.optimizer.zero_grad()
        self.model(torch.randn(16, 40, generator=draw)).square().mean().backward()
        gradient = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        done, result = threading.Event(), list[BaseException | None]()
        bucket = Bucket(0, self.step, gradient.numel(), 4, (), True)
        self.step += 1

        def tell(error: BaseException | None) -> None:
            result.append(error)
            done.set()

        self._door.submit(BucketRequest(bucket, self._level, gradient, self.residual, tell))
        assert done.wait(LIMIT), "a bucket was not restored in time"
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


class Job3:
    """Trainers on wires that can be cut. They train until they are told to end, so that nothing that they are to live
    through depends on how fast they are."""

    def __init__(self, trainers: list[Trainer], cables: Cables) -> None:
        self.trainers, self.cables = trainers, cables
        self.threads: list[threading.Thread] = []

    def start(self) -> None:
        self.threads = [threading.Thread(target=one.train) for one in self.trainers]
        for thread in self.threads:
            thread.start()

    def reach(self, rank: int, step: int) -> None:
        deadline = time.monotonic() + LIMIT
        while self.trainers[rank].step < step and time.monotonic() < deadline:
            time.sleep(0.005)
        assert self.trainers[rank].step >= step, "no progress"

    def cut(self, member: int, rank: int) -> int:
        """Takes a member's cables away; the step at which this rank of it was then."""
        self.cables.cut = {member}
        return self.trainers[rank].step

    def mend(self, *ranks: int) -> None:
        """Gives the cables back, and waits until each of these ranks is past where the first of all is: it is back."""
        self.cables.cut = set()
        for rank in ranks:
            self.reach(rank, max(one.step for one in self.trainers) + 1)

    def end(self) -> int:
        """All make a few steps more and end at the same one, which is returned and not made."""
        with TURN:
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
def crossing(members: int, rejoin: float = LIMIT) -> Iterator[tuple[list[TreeExecutor], Cables]]:
    matrix = Matrix.of(np.full((members, members), 1e7), 0.02)
    work = ReductionJob(4 * 3000, 32 << 10)
    replan = lambda members, version: make_plan(matrix.only(members), work, "loadaware", version)  # noqa: E731
    with cabled_wires(members) as (wires, cables):
        plan = make_plan(matrix, work, "loadaware")
        config = ExecutorConfig(timeout=LIMIT, elastic=True, rejoin=rejoin)
        executors = [TreeExecutor(wire, Member(wire.rank, range(members), plan, replan), config) for wire in wires]
        for executor in executors:
            PlanManager(executor, work, matrix, PlanManagerConfig(ReplanConfig("loadaware"), aware=False)).begin(
                executor.now()
            )
            executor.start()
        try:
            yield executors, cables
        finally:
            for executor in executors:
                executor.close()


@contextmanager
def job(level: str = "off", rejoin: float = LIMIT, returns: bool = True) -> Iterator[Job3]:
    with crossing(RANKS, rejoin) as (executors, cables):
        trainers = [Trainer(rank, one, level, returns=returns) for rank, one in enumerate(executors)]
        with ending(trainers, cables) as three:
            yield three


@contextmanager
def ending(trainers: list[Trainer], cables: Cables) -> Iterator[Job3]:
    """A job that ends with the test, also with one that failed."""
    try:
        yield Job3(trainers, cables)
    finally:
        for one in trainers:
            one.until = 0


@contextmanager
def two_sites() -> Iterator[Job3]:
    """Ranks 0 and 1 at one site, 2 and 3 at the other; gloo inside, threads instead of processes."""
    store = HashStore()

    def group(site: int, place: int, name: str, out: list[Any]) -> None:
        out.append(ProcessGroupGloo(PrefixStore(f"{site}/{name}", store), place, 2, timedelta(seconds=LIMIT)))

    with crossing(2) as (executors, cables):
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
    """Who is left out asks sooner: round trips take no time here."""
    monkeypatch.setattr(policy, "ASK", 0.2)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


@pytest.mark.parametrize(("rank", "level"), [(2, "off"), (0, "int8"), (1, "sharedk:0.2")])
def test_who_was_cut_off_comes_back_as_what_the_others_are(rank: int, level: str) -> None:
    """Rank 0 is the coordinator."""
    with job(level) as three:
        three.start()
        three.reach(rank, FIRST + 10)
        cut = three.cut(rank, rank)
        others = [one for one in range(RANKS) if one != rank]
        three.reach(others[0], cut + 20)
        away = three.trainers[rank].step
        three.mend(rank)
        last = three.end()
        assert [one.error for one in three.trainers] == [None] * RANKS
        back = three.trainers[rank]
        assert cut <= away < cut + 10, "it went on alone"
        assert back.backs
        assert len(back.made) < last - FIRST - 10
        assert all(three.trainers[one].made == list(range(FIRST, last)) for one in others), "a step was lost"
        for step in back.made:
            for other in others:
                same = torch.equal(three.trainers[other].weights[step], back.weights[step])
                # Its last step before the cut may be one that the others did again without it.
                assert same or (step < away and step + 1 not in back.made)
        assert back.made[-1] == last - 1
        assert {one.executor.member.members for one in three.trainers} == {tuple(range(RANKS))}


def test_it_waits_for_the_others_only_so_long_and_never_goes_on_alone() -> None:
    with job(rejoin=1.5) as three:
        three.start()
        three.reach(2, FIRST + 10)
        cut = three.cut(2, 2)
        three.threads[2].join(LIMIT)
        three.reach(0, cut + 20)
        last = three.end()
        assert isinstance(three.trainers[2].error, LinkError)
        assert "planning.rejoin" in str(three.trainers[2].error)
        assert len(three.trainers[2].made) < cut - FIRST + 10
        assert [one.made for one in three.trainers[:2]] == [list(range(FIRST, last))] * 2


def test_without_anything_to_hand_over_nobody_waits() -> None:
    with job(returns=False) as three:
        three.start()
        three.reach(2, FIRST + 10)
        cut = three.cut(2, 2)
        three.threads[2].join(LIMIT)
        three.reach(0, cut + 20)
        last = three.end()
        assert "not enough" in str(three.trainers[2].error)
        assert [one.made for one in three.trainers[:2]] == [list(range(FIRST, last))] * 2


def test_when_everybody_was_cut_off_from_everybody_all_go_on() -> None:
    with job() as three:
        three.start()
        three.reach(0, FIRST + 10)
        three.cables.cut = {0, 1, 2}
        time.sleep(1.5 * QUICK.dead_after)
        three.mend(0, 1, 2)  # two of them may go on before the third is taken back
        last = three.end()
        assert [one.error for one in three.trainers] == [None] * RANKS
        final = [one.weights[last - 1] for one in three.trainers]
        assert all(torch.equal(final[0], other) for other in final)


def test_a_site_that_was_cut_off_comes_back_as_a_whole() -> None:
    with two_sites() as four:
        four.start()
        four.reach(2, FIRST + 10)
        cut = four.cut(1, 2)  # the second site, as the plan counts members
        four.reach(0, cut + 20)
        four.mend(2)
        last = four.end()
        assert [one.error for one in four.trainers] == [None] * 4
        assert all(one.made == list(range(FIRST, last)) for one in four.trainers[:2]), "a step was lost"
        for back in four.trainers[2:]:
            assert len(back.made) < last - FIRST - 10
            final = [one.weights[last - 1] for one in (four.trainers[0], back)]
            assert torch.equal(*final)


@pytest.mark.parametrize("first", [0, 2])
def test_a_goodbye_at_the_end_is_neither_a_loss_nor_a_regroup(first: int) -> None:
    with job() as three:
        three.start()
        three.reach(0, FIRST + 5)
        three.end()
        three.trainers[first].executor.close()
        time.sleep(1.5 * QUICK.dead_after)  # longer than it takes to notice a loss
        left = [one for one in three.trainers if one.executor.member.rank != first]
        assert [one.losses for one in left] == [[], []]
        assert {one.executor.member.epoch for one in left} == {0}
        assert all(first in one.executor.frame_io.left for one in left)


def test_who_leaves_in_the_middle_is_done_without_at_once() -> None:
    with job() as three:
        for one, steps in zip(three.trainers, (10, 30, 30), strict=True):
            one.until = FIRST + steps
        three.start()
        three.threads[0].join(LIMIT)
        three.trainers[0].executor.close()
        three.join()
        assert [one.error for one in three.trainers] == [None] * RANKS
        assert torch.equal(three.trainers[1].weights[FIRST + 29], three.trainers[2].weights[FIRST + 29])
        assert three.trainers[1].executor.member.members == (1, 2)


def test_a_state_of_many_pieces_arrives_whole() -> None:
    draw = torch.Generator().manual_seed(0)
    tensors = [torch.randn(n, generator=draw) for n in (700_001, 0, 1, FRAME, 12_345)]
    got: list[tuple[bytes, torch.Tensor]] = []
    net = FakeNet()
    ports = [FrameIO(net.wire(rank), MonotonicClock(), LIMIT) for rank in range(2)]
    giver = StateSender(ports[0], 1, (7, 3), (b"what it is", tensors))
    taker = StateReceiver(ports[1], 0, (7, 3), lambda *state: got.append(state))
    giver.begin()
    taker.begin(giver.header, giver.body)
    deadline = time.monotonic() + LIMIT
    while not got and time.monotonic() < deadline:
        for port in ports:
            port.turn(0.01)
    header, body = got[0]
    assert header == b"what it is"
    assert torch.equal(body.clone().view(torch.float32), torch.cat(tensors))
    for port in ports:
        port.close()


def test_a_state_comes_out_as_it_went_in() -> None:
    torch.manual_seed(0)
    first, second = (nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)) for _ in range(2))
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (first, second)]
    first(torch.randn(4, 3)).sum().backward()
    optimizers[0].step()
    steps: list[int] = []
    header, tensors = ReplicaState(first, [optimizers[0]], steps.append).give(7)
    body = torch.cat([t.detach().reshape(-1).contiguous().view(torch.uint8) for t in tensors])
    ReplicaState(second, [optimizers[1]], steps.append).take(header, body)
    assert steps == [7]
    assert all(
        torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )
    momenta = [[s["momentum_buffer"] for s in o.state_dict()["state"].values()] for o in optimizers]
    assert all(torch.equal(a, b) for a, b in zip(*momenta, strict=True))


def test_a_state_of_another_model_or_none_at_all_changes_nothing() -> None:
    one, other = nn.Linear(3, 2), nn.Linear(3, 3)
    before = other.weight.detach().clone()
    header, tensors = ReplicaState(one, [], lambda step: None).give(0)
    body = torch.cat([t.detach().reshape(-1).view(torch.uint8) for t in tensors])
    taker = ReplicaState(other, [], lambda step: None)
    for bad in (header, header[:-3], b"\x93junk", b""):
        with pytest.raises(IntegrityError):
            taker.take(bad, body)
    assert torch.equal(other.weight, before)


def test_what_cannot_be_handed_over_is_named_at_once() -> None:
    class Odd:
        def state_dict(self) -> dict[str, object]:
            return {"file": object()}

        def load_state_dict(self, state: object) -> None: ...

    with pytest.raises(ConfigError, match="holds a object"):
        ReplicaState(nn.Linear(2, 2), [Odd()], lambda step: None)


def test_a_replica_with_other_buckets_is_left_as_it_was() -> None:
    given, taken = nn.Linear(2, 2), nn.Linear(2, 2)
    before = taken.weight.clone()
    header, tensors = ReplicaState(given, [], lambda step: None, BucketLayout({0: ("weight", "bias")})).give(0)
    body = torch.cat([tensor.detach().reshape(-1).view(torch.uint8) for tensor in tensors])
    with pytest.raises(IntegrityError, match="buckets hold other parameters"):
        ReplicaState(taken, [], lambda step: None, BucketLayout({0: ("bias", "weight")})).take(header, body)
    assert torch.equal(taken.weight, before)
