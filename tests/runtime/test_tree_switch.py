"""Changing to trees while training: sums and residuals survive it, and trees that are not kept are closed again."""

from __future__ import annotations

from collections.abc import Collection

import pytest
import torch

from gradwire.decide.transport_choice import TransportChooser
from gradwire.decide.transport_step import TransportChoice, TransportStep
from gradwire.events import Event, Faulted, Planned
from gradwire.runtime.pipeline import Pipeline
from gradwire.runtime.transport_switch import OpenTransport, TransportSwitch
from gradwire.runtime.tree_opener import JobSteps
from gradwire.sites.reducer import TreeReducer
from gradwire.types import Readiness, TransportKind
from tests.runtime import test_transport_switch
from tests.runtime.sessions import Sessions
from tests.runtime.transports import transport_of
from tests.tree.test_setup import connections


@pytest.mark.parametrize("level", ["off", "int8", "int4", "sharedk:0.1+int8"])
@pytest.mark.parametrize("every", [1, 2])
def test_sums_and_residuals_survive_changes_between_shards_and_trees(level: str, every: int) -> None:
    """What was sent and what waits add up to the gradients, also what owners of shards kept."""
    world_size, shapes = 3, [[("a", (64, 32))], [("b", (500,))]]
    sessions = Sessions(world_size, shapes)
    with connections(world_size, {"plan": "loadaware"}) as opened:
        for context, connection in zip(sessions.contexts, opened, strict=True):
            reducer, switch = TreeReducer(connection, None), context.transports
            switch._open["trees"] = OpenTransport(
                kind="trees",
                pipeline=switch.current.pipeline,
                footprint=reducer.footprints,
                reducer=reducer,
                close=lambda: None,
            )
        torch.manual_seed(1)
        total, sent = [torch.zeros(2048), torch.zeros(500)], [torch.zeros(2048), torch.zeros(500)]
        for step in range(8):
            for context in sessions.contexts:
                context.transports.use("trees" if step // every % 2 else "group")
            gradients = [[torch.randn(2048), torch.randn(500)] for _ in range(world_size)]
            results = sessions.step(level, gradients)
            for index in range(2):
                total[index] += sum(own[index] for own in gradients) / world_size
                sent[index] += results[0][index]
                assert all(torch.equal(results[0][index], own[index]) for own in results)
        waiting = [feedback.state_dict()["residuals"] for feedback in sessions.feedbacks]
        for index, name in enumerate("ab"):
            own = (one[name].view(-1) for one in waiting if name in one)
            held = sum(own, torch.zeros_like(sent[index])) / world_size
            torch.testing.assert_close(sent[index] + held, total[index], rtol=1e-4, atol=1e-4)
        sessions.close()


def opened_trees(closed: list[str]) -> tuple[TransportSwitch, list[str]]:
    opened: list[str] = []

    def opener(kind: TransportKind) -> OpenTransport:
        opened.append(kind)
        return OpenTransport(
            kind=kind,
            pipeline=Pipeline([], lambda timing: None),
            footprint=lambda *_: [],
            close=lambda: closed.append(kind),
        )

    return transport_of(Pipeline([], lambda timing: None), 2, opener), opened


def joined(switch: TransportSwitch) -> None:
    assert switch._thread is not None
    switch._thread.join(10)
    assert not switch._thread.is_alive()


def test_trees_that_are_not_kept_are_closed_and_opened_anew_when_they_are_asked_for() -> None:
    closed: list[str] = []
    switch, opened = opened_trees(closed)
    switch.follow("group", "trees")
    joined(switch)
    switch.follow("group", "trees")
    assert switch.report() == Readiness("trees")
    switch.follow("trees", "group")
    switch.follow("trees", "group")
    assert switch.current.kind == "trees"
    assert closed == []
    switch.follow("group", "group")
    joined(switch)
    assert closed == ["trees"]
    assert switch.report() == Readiness()
    switch.follow("group", "trees", step=31)
    joined(switch)
    assert opened == ["trees", "trees"]
    assert switch.step == 31
    switch.close_lanes()
    switch.release()
    assert closed == ["trees", "trees"]


def test_a_wire_that_is_not_kept_stays_open() -> None:
    closed: list[str] = []
    switch, _ = opened_trees(closed)
    for use, prepare in (("group", "tcp"), ("tcp", "group"), ("group", "group")):
        switch.follow(use, prepare)  # type: ignore[arg-type]
        joined(switch)
    assert closed == []
    switch.close_lanes()
    assert closed == ["tcp"]


def test_the_plan_and_the_transport_together_are_the_version_of_footprints() -> None:
    closed: list[str] = []
    switch, _ = opened_trees(closed)
    before = switch.plan_version()
    switch.follow("group", "trees")
    joined(switch)
    switch.use("trees")
    assert switch.plan_version() != before
    switch.close_lanes()


def test_events_of_trees_have_the_steps_of_the_job() -> None:
    switch, _ = opened_trees([])
    switch.follow("group", "group", step=77)
    seen: list[Event] = []

    class Sink:
        def emit(self, event: Event) -> None:
            seen.append(event)

    events = JobSteps(Sink(), switch)
    events.emit(Planned(1.0, 3, 1, "sites", "because", 0.2, (), {}, 0))
    events.emit(Faulted(1.0, 3, "fallback", "text"))
    assert [event.step for event in seen if isinstance(event, Planned | Faulted)] == [77, 77]
    switch.close_lanes()


class TwiceOverTrees(TransportChooser):
    """Uses trees as soon as every rank has them, leaves them after some steps, and asks for them again at once."""

    def __init__(self) -> None:
        super().__init__()
        self.carried = self.rests = 0

    def take(
        self, step: TransportStep, ready: Collection[TransportKind], failed: Collection[TransportKind]
    ) -> TransportChoice:
        self.carried += step.ran == "trees"
        self.rests -= self.rests > 0
        if self.use == "trees" and self.carried >= 4:
            self.use, self.carried, self.rests = "group", -100 if self.switches else 0, 1
            self.switches += 1
        elif "trees" in ready and not self.rests and self.switches < 2:
            self.use = "trees"
        asks = self.use != "trees" and not self.rests and self.switches < 2
        return TransportChoice(self.use, "trees" if asks else "group")


def test_a_report_of_trees_that_were_closed_is_not_taken_for_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_transport_switch, "ScriptedChooser", TwiceOverTrees)
    # Steps are not timed here, and trees are opened twice beside them: enough steps for a busy machine.
    ran = test_transport_switch.run(3, steps=600)
    assert [one.error for one in ran] == [""] * 3
    kinds = ran[0].kinds
    assert ran[1].kinds == ran[2].kinds == kinds
    changes = [kinds[step] for step in range(1, len(kinds)) if kinds[step] != kinds[step - 1]]
    assert changes[:3] == ["trees", "group", "trees"]
