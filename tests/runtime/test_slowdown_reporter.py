"""SlowdownReporter: one event for a level that is used, and another when what is known of its cost changes."""

from __future__ import annotations

from gradwire.events import Event, Priced
from gradwire.level import Level
from gradwire.runtime.guard_reporter import GuardReporter
from gradwire.runtime.slowdown_reporter import APART, HELD, SlowdownReporter
from gradwire.types import Decision, Slowdown

SPARSE, DENSE = Level.parse("topk:0.1+int8"), Level.parse("int8")


class EventList:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)


def reported(slowdowns: list[Slowdown | None]) -> list[Event]:
    sink = EventList()
    reporter = SlowdownReporter(sink)
    for step, one in enumerate(slowdowns):
        reporter.report(float(step), step, one)
    return sink.events


def test_a_level_is_reported_once_it_was_used_for_some_steps_and_not_again_while_nothing_changes() -> None:
    (event,) = reported([Slowdown(SPARSE, 1.2, 1.2)] * 500)
    assert event == Priced(HELD - 1.0, HELD - 1, "topk:0.1+int8", 1.2, 1.2)


def test_a_level_that_is_only_tried_or_costs_nothing_is_not_reported() -> None:
    assert reported([Slowdown(SPARSE, 1.2, 1.2), Slowdown(DENSE, 1.0, 1.0)] * 50) == []
    assert reported([None] * 50) == []
    assert reported([Slowdown(DENSE, 1.0, 1.0)] * 50) == []


def test_what_losses_show_is_reported_when_they_do_and_when_it_changes_but_not_at_every_step() -> None:
    before = [Slowdown(SPARSE, 1.2, 1.2)] * APART
    known = [Slowdown(SPARSE, 1.2, 1.3, 1.5, 1.3, 1.8, 200)] * 300
    moving = [Slowdown(SPARSE, 1.2, 1.3 + step / 1000, 1.5, 1.3, 1.8, 200) for step in range(300)]
    events = reported([*before, *known])
    assert [(one.realised, one.low, one.high) for one in events if isinstance(one, Priced)] == [
        (None, None, None), (1.5, 1.3, 1.8)
    ]  # fmt: skip
    assert 2 <= len(reported([*before, *moving])) <= 2 + 300 // APART


def test_the_rank_that_decides_reports_it_with_its_decisions() -> None:
    sink = EventList()
    reporter = GuardReporter(sink)
    for step in range(HELD):
        reporter.report(0.0, step, Decision(SPARSE, "why", slowdown=Slowdown(SPARSE, 1.2, 1.2)))
    assert [type(one) for one in sink.events] == [Priced]
