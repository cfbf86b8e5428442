"""Faults in the middle of a change of transport, in virtual time: whatever happens, the way that was in use goes on.

The shipped decider and chooser, and a shipped switch for every rank. Threads, pulses and exchanges are virtual: opening
takes some steps, fails on one rank or never ends; what is open dies; decisions arrive late; the job is killed.
"""

from __future__ import annotations

import random
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from gradwire.decide import transport_choice
from gradwire.decide.base import Job
from gradwire.decide.decision_timing import SAFE, DecisionTiming
from gradwire.decide.transport_choice import TransportChooser
from gradwire.errors import LinkError
from gradwire.events import Event
from gradwire.exchange.select import FootprintTable
from gradwire.level import Level
from gradwire.runtime import transport_switch
from gradwire.runtime.pipeline import Pipeline
from gradwire.runtime.transport_decider import CarriedStep, TransportDecider
from gradwire.runtime.transport_switch import OpenTransport, TransportSwitch
from gradwire.types import Bucket, Decision, LinkView, RouteForecast, StepFacts, TransportKind, View
from tests.runtime.transports import transport_of

WORLD, STEPS = 3, 140
INT4 = Level.parse("int4")
WIRES: tuple[TransportKind, ...] = ("tcp", "ltp", "trees")


@dataclass
class Threads:
    """Virtual threads: each ends at a step that the world draws, or never."""

    step: int = 0
    running: list[VirtualThread] = field(default_factory=list)
    takes: Callable[[str], float] = lambda name: 1.0

    def run(self) -> None:
        for one in list(self.running):
            if one.ends <= self.step:
                self.running.remove(one)
                one.target(*one.args)


class VirtualThread:
    world = Threads()

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], name: str, daemon: bool) -> None:
        self.target, self.args, self.name, self.ends = target, args, name, float("inf")

    def start(self) -> None:
        self.ends = self.world.step + self.world.takes(self.name)
        self.world.running.append(self)

    def is_alive(self) -> bool:
        return self in self.world.running

    def join(self, timeout: float) -> None:
        """The caller gives up after its timeout."""


class FixedController:
    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        return Decision(INT4, "the test's")


class Forecaster:
    uniform = False

    def take(self, step: CarriedStep) -> RouteForecast | None:
        return None if step.step < 20 else RouteForecast(0.6, 0.2, "forecast")


class World:
    """A job of some ranks. `dead` are what died, by the step at which it did."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.threads = VirtualThread.world = Threads(takes=lambda name: self.draw.choice((1, 2, 5, 20, float("inf"))))
        self.blocked = {(kind, rank) for kind in WIRES for rank in range(WORLD) if self.draw.random() < 0.1}
        self.seconds = {kind: self.draw.uniform(0.3, 1.2) for kind in ("group", *WIRES)}
        self.opened: Counter[int] = Counter()
        self.closed: Counter[int] = Counter()
        self.dead: dict[tuple[str, int], int] = {}
        self.switches = [self._switch(rank) for rank in range(WORLD)]
        chooser = TransportChooser(WIRES)
        self.decider = TransportDecider(FixedController(), chooser, self, Forecaster())
        self.timing = DecisionTiming()
        start = Decision(INT4, "start")
        self.made, self.in_force = deque([start] * (SAFE + 1), maxlen=SAFE + 1), start
        self.changes = 0
        self.used: list[str] = []
        bucket = Bucket(0, 0, 100_000, 4, (), True)
        self.job = Job(WORLD, (bucket,), FootprintTable(WORLD))

    def emit(self, event: Event) -> None:
        """Reasons are tested elsewhere."""

    def _switch(self, rank: int) -> TransportSwitch:
        def opener(kind: TransportKind) -> OpenTransport:
            if (kind, rank) in self.blocked:
                raise LinkError("the port is blocked")
            number = len(self.opened)
            self.opened[number] += 1
            self.dead.pop((kind, rank), None)
            return OpenTransport(
                kind=kind,
                pipeline=Pipeline([], lambda timing: None),
                footprint=FootprintTable(WORLD, own_wire=True),
                own_wire=True,
                alive=lambda: not any((kind, other) in self.dead for other in range(WORLD)),
                release=lambda: self.closed.update([number]),
            )

        return transport_of(Pipeline([], lambda timing: None), WORLD, opener)

    def step(self, step: int) -> None:
        """One step of all ranks; LinkError where its transport is dead, on all of them."""
        self.threads.step = step
        decision = self.in_force
        for switch in self.switches:
            switch.follow(decision.transport, decision.prepare, step)
            self.threads.run()
        kinds = {switch.current.kind for switch in self.switches}
        assert len(kinds) == 1, "every rank carries a step by the same transport"
        kind = kinds.pop()
        self.used.append(kind)
        died = [at for (what, _), at in self.dead.items() if what == kind]
        if died:
            assert min(died) >= step - 1 - SAFE or kind in self.used[min(died) : step], "it was known to be dead"
            raise LinkError(f"{kind} is dead")
        reports = [switch.report() for switch in self.switches]
        self._fault(step)
        took = self.seconds[kind] * self.draw.uniform(0.95, 1.05)
        facts = StepFacts(took, 0.9 * took, 0.9 * took, 400_000, 2, level=decision.level)
        view = View(LinkView(rtprop=0.1, bandwidth=1e6), changes=self.changes)
        carried = CarriedStep(step, float(step), self.job, facts, view, kind)
        made = self.decider.decide(carried, self.made[-1], reports)
        late = self.draw.choice((-0.1, -0.1, 0.1))
        self.made.append(replace(made, delay=self.timing.take([late])))
        self.in_force = self.made[-1 - self.in_force.delay]

    def _fault(self, step: int) -> None:
        if self.draw.random() < 0.02:
            self.changes += 1
            self.seconds = {kind: self.draw.uniform(0.3, 1.2) for kind in self.seconds}
        if self.draw.random() < 0.02:
            kind, rank = self.draw.choice(WIRES), self.draw.randrange(WORLD)
            if kind in self.switches[rank]._open:
                self.dead.setdefault((kind, rank), step)

    def close(self) -> None:
        for switch in self.switches:
            switch.close_lanes()
            switch.release()
        self.threads.takes, self.threads.step = lambda name: 0.0, STEPS + 100
        for one in self.threads.running:
            one.ends = 0.0  # what never ended is ended by its own deadline
        self.threads.run()


@pytest.fixture(autouse=True)
def _virtual(monkeypatch: pytest.MonkeyPatch) -> None:
    virtual = SimpleNamespace(Thread=VirtualThread, Lock=threading.Lock)
    monkeypatch.setattr(transport_switch, "threading", virtual)
    monkeypatch.setattr(transport_choice, "RETRY", 16)


def run(seed: int) -> World:
    world = World(seed)
    killed = world.draw.choice((STEPS, STEPS, world.draw.randrange(STEPS)))
    try:
        for step in range(killed):
            world.step(step)
    except LinkError:
        assert world.used[-1] != "group", "the process group never fails here"
    finally:
        world.close()
    return world


@pytest.mark.parametrize("first", range(0, 240, 40))
def test_whatever_fails_while_transports_change_ranks_agree_and_nothing_stays_open(first: int) -> None:
    worlds = [run(seed) for seed in range(first, first + 40)]
    for world in worlds:
        assert all(count == 1 for count in world.opened.values())
        assert world.closed == world.opened, "each is closed once, also one that was opened too late"
    assert any(len(set(world.used)) > 1 for world in worlds)
    whole = [world for world in worlds if len(world.used) == STEPS]
    assert whole, "most jobs go on to their end"


def test_where_no_rank_can_open_anything_the_group_carries_every_step() -> None:
    world = World(1)
    world.blocked = {(kind, WORLD - 1) for kind in WIRES}
    for step in range(STEPS):
        world.step(step)
    world.close()
    assert set(world.used) == {"group"}
    assert world.closed == world.opened
