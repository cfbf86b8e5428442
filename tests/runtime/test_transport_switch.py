"""Changing the transport while training: every rank at the same step, nothing lost, and no change where one cannot."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field

import pytest
import torch

from gradwire.clock import MonotonicClock
from gradwire.decide.base import Job
from gradwire.decide.transport_choice import TransportChooser
from gradwire.decide.transport_step import TransportChoice, TransportStep
from gradwire.errors import LinkError
from gradwire.events import Event, TransportChosen
from gradwire.exchange.select import FootprintTable
from gradwire.level import Level
from gradwire.runtime.adaptive_governor import AdaptiveGovernor, OpenChoice
from gradwire.runtime.pipeline import Pipeline
from gradwire.runtime.transport_decider import CarriedStep, TransportDecider
from gradwire.runtime.transport_switch import OpenTransport, TransportSwitch
from gradwire.sense.step_timer import StepTimer
from gradwire.transport.lanes.loopback import Loopback
from gradwire.types import Decision, LinkView, Readiness, StepFacts, TransportKind, View
from tests.runtime.sessions import Sessions
from tests.runtime.test_adaptive_governor import CountingController
from tests.runtime.test_governor import ManualClock, bucket, governor_context
from tests.runtime.transports import open_transport, transport_of

STEPS = 40


class ScriptedChooser(TransportChooser):
    """Asks for TCP at its fifth step, uses it as soon as every rank has it, and leaves it at its 25th."""

    def take(
        self, step: TransportStep, ready: Collection[TransportKind], failed: Collection[TransportKind]
    ) -> TransportChoice:
        self._step += 1
        if self._step < 5 or failed:
            return TransportChoice("group")
        if "tcp" in ready and self._step < 25:
            self.use = "tcp"
            return TransportChoice("tcp", reason="the test says so")
        self.use = "group"
        return TransportChoice("group", "tcp" if self._step < 25 else "group")


@dataclass
class Ran:
    """One rank: what carried each of its steps, its events and the error that ended it."""

    kinds: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    error: str = ""


def run(
    world_size: int, cannot_open: Collection[int] = (), *, held: threading.Event | None = None, steps: int = STEPS
) -> list[Ran]:
    """Governors of all ranks in one process. `held`: the last rank opens only after this is set."""
    pulses, decisions, wires = Loopback(world_size), Loopback(world_size), Loopback(world_size)
    ran = [Ran() for _ in range(world_size)]

    def opener_of(rank: int) -> TransportSwitch:
        def opener(kind: TransportKind) -> OpenTransport:
            if held is not None and rank == world_size - 1:
                held.wait(20)
            if rank in cannot_open:
                raise LinkError("the port is blocked")
            return open_transport(Pipeline([wires.lane(rank)], lambda timing: None), world_size, kind, own_wire=True)

        return transport_of(Pipeline([], lambda timing: None), world_size, opener)

    def one(rank: int) -> None:
        sink, clock, timer = ManualClock(), MonotonicClock(), StepTimer()
        transports = opener_of(rank)
        context = governor_context(timer, sink, transports.footprint, clock=clock, rank=rank, world_size=world_size)
        pipeline = Pipeline([pulses.lane(rank), decisions.lane(rank)], lambda timing: None)
        start = Decision(Level(values="int8"), "start")
        chooser = ScriptedChooser() if rank == 0 else None
        governor = AdaptiveGovernor(
            context, CountingController(), start, pipeline, transports, None, OpenChoice(chooser)
        )
        try:
            for step in range(steps):
                governor.begin_step(bucket(step))
                ran[rank].kinds.append(transports.current.kind)
                timer.bucket_ready(clock.now(), 4000)
                timer.operation(clock.now() - 0.001, clock.now(), 1000)
                if held is not None and step == 15:
                    held.set()
        except LinkError as failure:
            ran[rank].error = str(failure)
        finally:
            governor.finish()
            transports.close_lanes()
            governor.close()
            transports.release()
        ran[rank].events = sink.events

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return ran


def test_every_rank_changes_at_the_same_step_and_back() -> None:
    ran = run(3)
    assert [one.error for one in ran] == [""] * 3
    kinds = ran[0].kinds
    assert ran[1].kinds == ran[2].kinds == kinds
    changes = [step for step in range(1, STEPS) if kinds[step] != kinds[step - 1]]
    assert [kinds[step] for step in changes] == ["tcp", "group"]
    assert any(isinstance(event, TransportChosen) and event.transport == "tcp" for event in ran[0].events)


def test_nobody_changes_before_the_last_rank_has_opened_it() -> None:
    ran = run(3, held=threading.Event())
    assert [one.error for one in ran] == [""] * 3
    assert ran[0].kinds == ran[1].kinds == ran[2].kinds
    assert ran[0].kinds[:16] == ["group"] * 16
    assert "tcp" in ran[0].kinds


@pytest.mark.parametrize("blocked", [{0}, {2}, {0, 1, 2}])
def test_where_a_rank_cannot_open_it_all_stay(blocked: set[int]) -> None:
    ran = run(3, blocked)
    assert [one.error for one in ran] == [""] * 3
    assert all(one.kinds == ["group"] * STEPS for one in ran)


def test_the_switch_opens_each_transport_once_and_closes_all() -> None:
    opened: list[str] = []
    released: list[str] = []

    def opener(kind: TransportKind) -> OpenTransport:
        opened.append(kind)
        pipeline = Pipeline([], lambda timing: None)
        return OpenTransport(
            kind=kind, pipeline=pipeline, footprint=lambda *_: [], release=lambda: released.append(kind)
        )

    switch = transport_of(Pipeline([], lambda timing: None), 2, opener)
    for _ in range(3):
        switch.prepare("tcp")
        assert switch._thread is not None
        switch._thread.join(10)
    assert switch.readiness == Readiness("tcp")
    switch.prepare("ltp")
    switch._thread.join(10)
    switch.prepare("tcp")
    assert switch.readiness == Readiness("tcp"), "it is still open"
    switch.use("tcp")
    switch.use("tcp")
    assert switch.version == 1
    switch.close_lanes()
    switch.release()
    switch.release()
    assert opened == ["tcp", "ltp"]
    assert sorted(released) == ["ltp", "tcp"]
    assert switch.opener is None, "it refers to process groups, whose sockets close with the last reference"
    assert switch.current.pipeline.lanes == 0


def test_one_that_lost_a_peer_while_it_was_not_used_has_failed() -> None:
    alive = [True]

    def opener(kind: TransportKind) -> OpenTransport:
        pipeline = Pipeline([], lambda timing: None)
        return OpenTransport(kind=kind, pipeline=pipeline, footprint=lambda *_: [], alive=lambda: alive[0])

    switch = transport_of(Pipeline([], lambda timing: None), 2, opener)
    assert switch.report() == Readiness()
    switch.prepare("tcp")
    assert switch._thread is not None
    switch._thread.join(10)
    assert switch.report() == Readiness("tcp")
    alive[0] = False
    assert switch.report() == Readiness("tcp", failed=True)
    switch.close_lanes()


class SeenChanges:
    """A controller that keeps the counts of network changes that it is shown."""

    def __init__(self) -> None:
        self.changes: list[int] = []

    def decide(self, job: Job, view: View, facts: StepFacts, now: float) -> Decision:
        self.changes.append(view.changes)
        return Decision(Level(), "the same")


class Switching(TransportChooser):
    def take(
        self, step: TransportStep, ready: Collection[TransportKind], failed: Collection[TransportKind]
    ) -> TransportChoice:
        self._step += 1
        self.use = "tcp" if self._step >= 3 else "group"
        return TransportChoice(self.use)


@pytest.mark.parametrize(("over_group", "over_tcp"), [(0, 0), (1, 0), (5, 2), (0, 3)])
def test_the_controller_sees_a_network_change_when_the_transport_changes(over_group: int, over_tcp: int) -> None:
    controller = SeenChanges()
    decider = TransportDecider(controller, Switching(), ManualClock())
    job, facts = Job(2, (), FootprintTable(2)), StepFacts(1.0, level=Level())
    for step in range(6):
        kind: TransportKind = "group" if step < 2 else "tcp"
        view = View(LinkView(), changes=over_group if kind == "group" else over_tcp)
        decider.decide(CarriedStep(step, float(step), job, facts, view, kind), Decision(Level(), ""), ())
    assert controller.changes[:2] == [over_group] * 2
    assert len(set(controller.changes[2:])) == 1
    assert controller.changes[2] > over_group


def test_one_that_is_opened_too_late_closes_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwire.runtime.transport_switch.JOIN", 0.01)
    go, released = threading.Event(), threading.Event()

    def opener(kind: TransportKind) -> OpenTransport:
        go.wait(10)
        pipeline = Pipeline([], lambda timing: None)
        return OpenTransport(kind=kind, pipeline=pipeline, footprint=lambda *_: [], release=released.set)

    switch = transport_of(Pipeline([], lambda timing: None), 2, opener)
    switch.prepare("ltp")
    switch.close_lanes()
    switch.release()
    go.set()
    assert released.wait(10)
    assert switch.readiness == Readiness()


@pytest.mark.parametrize("level", ["off", "int4", "topk:0.1+int8", "lowrank:4"])
def test_sums_and_residuals_survive_a_change(level: str) -> None:
    """What was sent and what waits add up to the gradients, with a change of transport between any two steps."""
    world_size, shapes = 3, [[("a", (64, 32))], [("b", (500,))]]
    sessions = Sessions(world_size, shapes)
    other = Sessions(world_size, shapes)
    for mine, theirs in zip(sessions.contexts, other.contexts, strict=True):
        mine.transports._open["tcp"] = theirs.transports.current
    torch.manual_seed(1)
    total, sent = [torch.zeros(2048), torch.zeros(500)], [torch.zeros(2048), torch.zeros(500)]
    for step in range(6):
        for context in sessions.contexts:
            context.transports.use("tcp" if step % 2 else "group")
        gradients = [[torch.randn(2048), torch.randn(500)] for _ in range(world_size)]
        results = sessions.step(level, gradients)
        for index in range(2):
            total[index] += sum(own[index] for own in gradients) / world_size
            sent[index] += results[0][index]
            assert all(torch.equal(results[0][index], own[index]) for own in results)
    waiting = [feedback.state_dict()["residuals"] for feedback in sessions.feedbacks]
    for index, name in enumerate("ab"):
        held = sum((own[name].view(-1) for own in waiting if name in own), torch.zeros_like(sent[index])) / world_size
        torch.testing.assert_close(sent[index] + held, total[index], rtol=1e-4, atol=1e-4)
    sessions.close()
    other.close()
