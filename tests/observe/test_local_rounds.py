"""Local steps in every view: rounds, how replicas diverge, the outer step, and why a round ended."""

from __future__ import annotations

import msgspec
import pytest

from gradwire.events import Decided, Event, OuterStepped, Synchronised
from gradwire.observe import report
from gradwire.observe.local_rounds import LocalRounds
from gradwire.observe.metrics import exposition
from gradwire.observe.reader import Record
from gradwire.observe.run_facts import facts
from gradwire.observe.summary import SummarySink
from tests.observe.test_views_agree import drawn, overview, run_data, stepped


def outer_stepped(step: int, alignment: float | None = 0.75, **changes: object) -> OuterStepped:
    event = OuterStepped(
        at=float(step),
        step=step,
        local_steps=20,
        sync_every=20,
        reason="all 20 local steps were made",
        own_norm=1.5,
        norm=1.25,
        alignment=alignment,
        outer_norm=0.5 + step,
        waited=0.25,
    )
    return msgspec.structs.replace(event, **changes)  # type: ignore[type-var]


def records(ranks: int = 2, rounds: int = 4) -> list[Record]:
    """The higher rank's records come first."""
    return [
        Record(rank, 100.0 + step, event)
        for step in range(rounds)
        for rank in reversed(range(ranks))
        for event in _events(rank, step)
    ]


def _events(rank: int, step: int) -> list[Event]:
    return [stepped(step, 1.0, 0.0, 0.25, 0.0), outer_stepped(step, 0.5 + 0.1 * step, waited=0.25 * (rank + 1))]


def test_every_view_has_the_lowest_ranks_rounds() -> None:
    data = run_data(records())
    state = data.state
    assert (state.rounds.count, state.rounds.waited) == (4, 1.0)
    text = drawn(state)
    assert "every 20 steps: 4 outer steps, alignment of replicas 0.80" in text
    assert "all 20 local steps were made" in " ".join(text.split())
    shown = overview(data).local_steps
    assert shown is not None
    assert (shown.outer_steps, shown.sync_every, shown.outer_norm) == (4, 20, 3.5)
    assert shown.headline == state.rounds.headline
    assert {"alignment", "norm", "outer_norm", "waited@0", "own_norm@1"} <= set(data.series)
    assert data.series["alignment"].points == 4
    page = exposition({"run": state}).decode()
    assert 'gradwire_outer_steps_total{run="run"} 4.0' in page
    assert 'gradwire_alignment_ratio{run="run"} 0.8' in page


def test_the_report_has_a_row_for_each_number_and_a_run_without_local_steps_has_none() -> None:
    local, plain = run_data(records()).state, run_data([Record(0, 100.0, stepped(0, 1.0, 0.0, 0.2, 0.0))]).state
    runs = [report.ReportedRun(state, facts(name, state)) for name, state in (("local", local), ("plain", plain))]
    rows = {row[0]: row[1:] for row in report.table(runs)}
    assert rows["local steps between outer steps"] == ["20", "none"]
    assert rows["outer steps"] == ["4", "-"]
    assert rows["alignment of replicas, median"] == ["0.65", "-"]
    assert rows["outer step, median norm"] == ["2", "-"]
    assert "Local steps: alignment of replicas" in report.to_html(runs)
    assert "outer steps" not in {row[0] for row in report.table(runs[1:])}
    assert "Local steps" not in report.to_html(runs[1:])


def test_the_summary_says_how_far_replicas_diverged_and_keeps_what_it_said() -> None:
    sink = SummarySink()
    assert "local steps" not in str(sink.summary())
    sink.emit(outer_stepped(0))
    first = sink.summary()
    sink.emit(outer_stepped(1, None))
    assert "  local steps: every 20 steps: 1 outer step, alignment of replicas 0.75, pseudo-gradient 1.25," in str(
        first
    )
    assert "alignment" not in str(sink.summary()).split("local steps")[1]


def test_reasons_of_gradient_buckets_end_with_the_first_round_of_local_steps() -> None:
    """Weights are in one bucket here, gradients were in two; the second one's reason would stay for ever."""
    sink = SummarySink()
    for bucket in range(2):
        sink.emit(Decided(0.0, 0, bucket, "int8", "synchronous", 1))
        sink.emit(Synchronised(0.1, 0, bucket, "int8", 400, 100, 100, 0.1))
    assert list(sink.summary().reasons) == [0, 1]
    sink.emit(Decided(1.0, 1, 0, "int4", "rounds of 20 steps", 2, 20))
    sink.emit(Synchronised(1.1, 1, 0, "int4", 800, 100, 100, 0.1))
    sink.emit(outer_stepped(1))
    assert sink.summary().reasons == {0: "int4: rounds of 20 steps"}


def test_reasons_of_all_fragments_stay() -> None:
    sink = SummarySink()
    for bucket in range(2):
        sink.emit(Decided(0.0, bucket, bucket, "int8", "the configuration", 0))
        sink.emit(Synchronised(0.1, bucket, bucket, "int8", 400, 100, 100, 0.1))
        sink.emit(outer_stepped(bucket, fragment=bucket, fragments=2))
    assert list(sink.summary().reasons) == [0, 1]


def timed(step: int, steps: tuple[int, ...] = (30, 10)) -> OuterStepped:
    shares = {"weight": steps[0] / sum(steps), "rank_steps": steps, "rank_wait": 1.5}
    return outer_stepped(step, sync_every=0, sync_seconds=30.0, local_steps=steps[0], **shares)


def test_rounds_by_time_show_the_steps_of_every_rank_the_weight_and_the_wait() -> None:
    events = [(stepped(step, 1.0, 0.0, 0.25, 0.0), timed(step)) for step in range(2)]
    data = run_data([Record(0, 100.0 + step, event) for step, both in enumerate(events) for event in both])
    state, run = data.state, facts("timed", data.state)
    expected = "steps by rank 30, 10, weight of this rank 75 %, waited 3 s for slower ranks"
    assert state.rounds.headline.startswith("every 30 s: 2 outer steps")
    assert expected in state.rounds.headline
    assert expected in " ".join(drawn(state).split())
    rows = {row[0]: row[1:] for row in report.table([report.ReportedRun(state, run)])}
    assert rows["local steps between outer steps"] == ["those of 30 s"]
    assert rows["steps by rank in the last round"] == ["30, 10"]
    assert rows["waited for slower ranks"] == ["3 s"]
    assert {"local_steps@0", "weight@0", "rank_wait@0"} <= set(data.series)
    page = exposition({"run": state}).decode()
    assert 'gradwire_sync_seconds{run="run"} 30.0' in page
    assert 'gradwire_rank_wait_seconds_total{run="run"} 3.0' in page
    assert 'gradwire_round_steps{rank="1",run="run"} 10.0' in page
    assert 'gradwire_sync_every_steps{run="run"}' not in page


def test_the_steps_of_many_ranks_are_a_range() -> None:
    rounds = LocalRounds()
    rounds.take(timed(0, tuple(range(1, 41))))
    assert "steps by rank 1 to 40," in rounds.headline


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "every 20 steps"),
        ({"sync_every": 0, "sync_seconds": 2.5}, "every 2.5 s"),
        ({"fragments": 4}, "every 20 steps in 4 fragments"),
        ({"fragments": 4, "delay": 1}, "every 20 steps in 4 fragments, applied 1 step after sending"),
    ],
)
def test_the_rhythm_names_fragments_and_delay_where_there_are_any(changes: dict[str, object], expected: str) -> None:
    rounds = LocalRounds()
    assert rounds.rhythm == rounds.headline == ""
    rounds.take(outer_stepped(0, **changes))
    assert rounds.rhythm == expected
