"""watch, the report and the dashboard show one definition of a step's split and of the speed-up."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from gradwire.dashboard import views
from gradwire.dashboard.run_data import RunData
from gradwire.dashboard.schema import Overview, RunBrief
from gradwire.events import Noted, Sensed, Stepped
from gradwire.observe.announcement import VARIABLE, announce, announced
from gradwire.observe.format import seconds
from gradwire.observe.reader import Record, read
from gradwire.observe.run_facts import facts
from gradwire.observe.state import RunState
from gradwire.observe.step_split import PARTS, mean_split
from gradwire.observe.terminal import draw
from tests.observe.recordings import small


def overview(data: RunData) -> Overview:
    return views.overview(data, RunBrief("r", "r", 0.0, 0.0, 0, [], 0, True, "running", "", 0))


def drawn(state: RunState) -> str:
    out = io.StringIO()
    Console(file=out, width=100, color_system=None).print(draw(state, 100))
    return out.getvalue()


def stepped(step: int, *split: float, level: str = "int8") -> Stepped:
    return Stepped(float(step), step, sum(split), *split, 100, 50, 100, level)


def run_data(records: list[Record]) -> RunData:
    data = RunData()
    for record in records:
        data.take(record)
    return data


def test_watch_and_the_dashboard_show_the_same_split_whose_parts_add_up_to_the_step(tmp_path: Path) -> None:
    data = run_data(list(read(small(tmp_path))))
    shown = overview(data).split
    assert shown is not None
    assert sum(getattr(shown, part) for part in PARTS) == pytest.approx(shown.seconds)
    text = drawn(data.state)
    assert seconds(shown.seconds) in text
    for part in PARTS:
        assert f"{part} {seconds(getattr(shown, part))}" in text


def test_the_split_is_the_mean_of_all_ranks_and_of_the_last_twenty_steps_only() -> None:
    first = [Record(rank, 0.0, stepped(0, 9.0, 9.0, 9.0, 9.0)) for rank in (0, 1)]
    later = [
        Record(rank, float(step), stepped(step, 0.1 + rank * 0.2, 0.0, 0.3, 0.0))
        for step in range(1, 21)
        for rank in (0, 1)
    ]
    split = run_data(first + later).state.split
    assert split is not None
    assert split == pytest.approx((0.5, 0.2, 0.0, 0.3, 0.0))


def test_the_predicted_speedup_is_the_quotient_of_the_two_numbers_shown_beside_it() -> None:
    records = [Record(0, float(step), stepped(step, 0.1, 0.0, 0.1, 0.0)) for step in range(5)]
    sensed = Sensed(5.0, 4, 0.01, 1e6, 0.0, 0.0, 0.0, 7.0, 0.0, 0.0, 0.0, 0.0, predicted_plain=0.5)
    shown = overview(run_data([*records, Record(0, 5.0, sensed)]))
    assert shown.predicted_plain is not None
    assert shown.split is not None
    assert shown.speedup == pytest.approx(shown.predicted_plain / shown.split.seconds) == pytest.approx(2.5)


def test_the_measured_speedup_of_two_runs_is_the_same_in_the_report_and_the_dashboard(tmp_path: Path) -> None:
    data = run_data(list(read(small(tmp_path))))
    assert overview(data).step_mean == pytest.approx(facts("run", data.state).step_mean)
    split = facts("run", data.state).split
    assert sum(split[part] for part in PARTS) == pytest.approx(split["seconds"])


def test_a_step_of_which_only_the_whole_is_known_does_not_dilute_the_parts_of_others() -> None:
    known, whole = stepped(0, 0.1, 0.0, 0.1, 0.0), Stepped(1.0, 1, 5.0, 0.0, 0.0, 0.0, 0.0, 1, 1, 1)
    assert mean_split([known, whole]) == pytest.approx((0.2, 0.1, 0.0, 0.1, 0.0))
    only = mean_split([whole])
    assert only is not None
    assert not only.known
    assert only.seconds == 5.0


def test_impossible_numbers_in_a_recording_are_left_out_of_the_mean() -> None:
    assert mean_split([stepped(0, 1e300, 1e300, 0.0, 0.0), stepped(1, 0.1, 0.0, 0.0, 0.0)]) == (0.1, 0.1, 0, 0, 0)


def test_watch_shows_the_last_noted_loss_and_accuracy() -> None:
    data = run_data([Record(0, 1.0, stepped(1, 0.1, 0.0, 0.0, 0.0)), Record(0, 1.0, Noted(1.0, 1, 2.345, 0.25))])
    rows = {line.split()[0]: line for line in drawn(data.state).splitlines() if line.strip()}
    assert "2.345" in rows["loss"]
    assert "25 %" in rows["accuracy"]


def test_a_job_announces_where_it_records_to_the_view_that_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "recording"
    announce(tmp_path / "nobody-asked")
    assert announced(file) is None
    monkeypatch.setenv(VARIABLE, str(file))
    announce(tmp_path / "mine")
    assert announced(file) == (tmp_path / "mine").resolve()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "no" / "such" / "place"))
    announce(tmp_path / "other")  # costs the view, not the training
