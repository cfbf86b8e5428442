"""The run state: sums agree with the events, and memory stays bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradwire.events import Attached, Decided, LinkSample, LinksSensed, Noted, Sensed, Stepped
from gradwire.observe.reader import Record
from gradwire.observe.series import Distribution, Series
from gradwire.observe.state import MOST_LINKS, RunState
from gradwire.observe.step_split import RECENT
from tests.observe.recordings import fold, hour, small


def test_the_run_state_agrees_with_the_events(tmp_path: Path) -> None:
    state, records = fold(small(tmp_path))
    stepped = [record for record in records if isinstance(record.event, Stepped)]
    own = [record.event for record in stepped if record.rank == 0]
    assert state.world_size == 4
    assert state.steps == len(own)
    assert state.wire_bytes == sum(record.event.wire_bytes for record in stepped)  # type: ignore[union-attr]
    assert state.bytes_saved == state.plain_bytes - state.wire_bytes > 0
    assert sum(state.level_steps.values()) == state.steps
    assert sum(state.parts.values()) == pytest.approx(sum(event.seconds for event in own))
    assert len(state.links) == 12
    assert state.plan is not None
    assert state.ended
    decided = [record.event for record in records if record.rank == 0 and isinstance(record.event, Decided)]
    assert [event.reason for _, event in state.decisions] == [event.reason for event in decided]
    assert state.changes == len(decided) - 1


def test_the_predicted_gain_is_that_of_the_last_steps_not_of_one() -> None:
    state = RunState()
    assert state.predicted_speedup is None
    steps = [0.1] * (RECENT - 1) + [1.6]  # one that stalled must not turn the tile upside down
    for number, seconds in enumerate(steps):
        state.take(Record(0, 1.0, Stepped(1.0, number, seconds, seconds, 0.0, 0.0, 0.0, 1, 1, 1)))
        state.take(Record(0, 1.0, Sensed(1.0, number, None, 1e6, 0, 0, 0, seconds, 0, 0, 0, 0, predicted_plain=0.2)))
    assert state.predicted_plain == pytest.approx(0.2)
    assert state.predicted_speedup == pytest.approx(0.2 * RECENT / sum(steps))


def test_quantiles_are_within_a_per_cent() -> None:
    spread = Distribution()
    for value in range(1, 1001):
        spread.add(value / 1000)
    assert spread.mean == pytest.approx(0.5005)
    assert spread.quantile(0.5) == pytest.approx(0.5, rel=0.015)
    assert spread.quantile(0.99) == pytest.approx(0.99, rel=0.015)
    assert Distribution().quantile(0.5) == 0.0


def test_a_series_stays_bounded_and_keeps_its_mean() -> None:
    series = Series(most=64)
    for index in range(10_000):
        series.add(float(index), float(index % 10))
    assert len(series) < 64
    assert series.times == sorted(series.times)
    assert sum(series.values) / len(series) == pytest.approx(4.5, abs=0.2)
    series.add(1e6, float("nan"))


@pytest.mark.slow
def test_an_hour_of_sixteen_ranks_fits_into_bounded_memory(tmp_path: Path) -> None:
    state, records = fold(hour(tmp_path))
    assert len(records) > 50_000
    assert all(len(series) < 2048 for series in state.series.values())
    assert state.reached(0.5) is not None
    assert state.reached(0.999) is None
    assert state.faults["peer_lost"] > 0
    assert state.transport.missing > 0


def test_hostile_links_cannot_fill_memory() -> None:
    state = RunState()
    for start in range(0, 2 * MOST_LINKS, 1000):
        links = tuple(LinkSample(start + index, 0, 1.0) for index in range(1000))
        state.take(Record(0, 1.0, LinksSensed(1.0, 1, links)))
    assert len(state.links) == MOST_LINKS


def test_the_time_left_follows_the_pace() -> None:
    state = RunState()
    assert state.time_left is None
    state.take(Record(0, 1.0, Stepped(1.0, 10, 0.5, 0.5, 0.0, 0.0, 0.0, 1, 1, 1)))
    state.take(Record(0, 1.0, Noted(1.0, 10, total_steps=110)))
    assert state.time_left == pytest.approx(50.0)


def test_the_jobs_steps_are_rank_0s_in_whatever_order_files_are_read() -> None:
    """Rank 1 records each of its steps a little earlier than rank 0 does."""
    stepped = Stepped(10.0, 0, 0.5, 0.4, 0.0, 0.1, 0.0, 100, 50, 100, "int8")
    whole = [Record(rank, 10.0 * step - rank, stepped) for step in range(6) for rank in (1, 0)]
    for first in (None, 1, 0):
        state = RunState()
        for record in whole if first is None else sorted(whole, key=lambda record: record.rank != first):
            state.take(record)
        assert state.steps == len(state.series["seconds"].values) == 6
        assert state.level_steps == {"int8": 6}
        assert state.parts["compute"] == pytest.approx(2.4)
        assert state.wire_bytes == 2 * 6 * 50, "bytes are everybody's"


def test_links_of_a_rank_that_moved_to_another_host_are_forgotten() -> None:
    """A restarted run records into the same folder: what was measured between other hosts is no longer valid."""
    state = RunState()
    for rank, host in enumerate("abc"):
        state.take(Record(rank, 1.0, Attached(1.0, rank, 3, 10, {}, host)))
    links = tuple(LinkSample(a, b, 1e6, 0.08) for a, b in ((0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)))
    state.take(Record(0, 2.0, LinksSensed(2.0, 1, links)))
    for rank, host in enumerate("adc"):
        state.take(Record(rank, 3.0, Attached(3.0, rank, 3, 10, {}, host)))
    assert state.links.keys() == state.rates.keys() == state.trips.keys() == {(0, 2), (2, 0)}
