"""The status of a run follows from what its ranks recorded."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gradwire.clock import MonotonicClock
from gradwire.events import Attached, Ended, Event, Failed, Faulted, Noted, Opened, Stepped
from gradwire.observe import recorder
from gradwire.observe.files import segments
from gradwire.observe.follow import FollowedRun
from gradwire.observe.reader import Record
from gradwire.observe.recorder import Recorder, RecorderConfig
from gradwire.observe.run_status import SILENCE
from gradwire.observe.state import RunState
from tests.observe.test_terminal import shown

GONE = "LinkError: rank 1 on host1 is gone: the process ended, or it closed gradwire (AllToAll did not complete)"


def stepped(step: int) -> Stepped:
    return Stepped(0.0, step, 0.1, 0.1, 0, 0, 0, 100, 50, 100)


def run_of(*reported: tuple[int, Event]) -> RunState:
    """Three ranks that attached and made a step of a hundred, and what they reported then."""
    state = RunState()
    for rank in range(3):
        state.take(Record(rank, 1.0, Attached(0.0, rank, 3, 10, {}, f"host{rank}")))
        state.take(Record(rank, 2.0, stepped(1)))
    state.take(Record(0, 2.0, Noted(0.0, 1, total_steps=100)))
    for number, (rank, event) in enumerate(reported):
        state.take(Record(rank, 3.0 + number, event))
    return state


def killed() -> RunState:
    """Rank 1 is killed at step 2: two buckets fail on each of the others, which then close in order."""
    failed = [(rank, Failed(0.0, 2, GONE)) for rank in (0, 2, 0, 2)]
    return run_of(*failed, (0, stepped(1)), (0, Ended(0.0, 2)), (2, Ended(0.0, 2)))


def test_a_run_whose_ranks_failed_is_failed_and_has_no_time_left() -> None:
    assert run_of().status == "running"
    assert run_of().time_left is not None
    state = killed()
    assert (state.status, state.ended, state.time_left) == ("failed", False, None)
    assert state.missing == [1]


def test_a_rank_that_was_killed_before_its_first_events_were_written_is_missing() -> None:
    state = run_of(
        (3, Opened(0.0, "gradwire-events", 1, 3, 4, 1.0)), *[(rank, Failed(0.0, 2, GONE)) for rank in range(3)]
    )
    assert state.missing == [3]


def test_one_failure_that_every_rank_records_for_every_bucket_is_one_incident() -> None:
    state = killed()
    (incident,) = state.incidents
    assert incident.ranks == (0, 2)
    assert incident.detail == GONE
    assert state.faults == {"failed": 1}


def test_the_cause_on_a_rank_is_the_incident_not_its_consequences_on_others() -> None:
    state = run_of((0, Failed(0.0, 2, GONE)), (1, Failed(0.0, 2, "MemoryError: no room")), (2, Failed(0.0, 2, GONE)))
    (incident,) = state.incidents
    assert (incident.rank, incident.detail, incident.ranks) == (1, "MemoryError: no room", (0, 1, 2))


def test_the_terminal_shows_a_whole_failure_and_names_the_rank_that_recorded_no_end() -> None:
    text = shown(killed())
    assert "failed" in text
    assert "left" not in text
    assert GONE in " ".join(line.strip().removeprefix("incidents").strip() for line in text.splitlines())
    assert text.count("LinkError") == 1
    assert "rank 1: recorded neither an end nor a failure" in text


def test_a_run_that_made_steps_after_a_failure_runs_and_its_next_failure_is_another_incident() -> None:
    state = run_of(*((rank, Failed(0.0, 2, GONE)) for rank in range(3)), *((rank, stepped(3)) for rank in range(3)))
    assert state.status == "running"
    state.take(Record(2, 9.0, Failed(0.0, 4, GONE)))
    assert state.status == "failed"
    assert len(state.incidents) == 2


def test_a_lost_rank_does_not_keep_the_run_from_ending() -> None:
    lost = (0, Faulted(0.0, 2, "peer_lost", "the others go on", 1))
    back = (0, Faulted(0.0, 3, "peer_back", "rank 1 is back", 1))
    ended = ((0, Ended(0.0, 4)), (2, Ended(0.0, 4)))
    assert run_of(lost, *ended).status == "ended"
    assert run_of(lost, back, *ended).status == "running"


@pytest.mark.parametrize(("silence", "status"), [(SILENCE - 1, "running"), (SILENCE + 1, "failed")])
def test_a_run_that_nobody_ended_and_nobody_writes_is_failed(silence: float, status: str) -> None:
    state = run_of()
    state.update_silence(now=1000.0 + silence, touched=1000.0)
    assert state.status == status
    assert (state.time_left is None) == (status == "failed")


def test_a_recording_that_is_not_written_to_any_more_shows_as_failed(tmp_path: Path) -> None:
    rank0 = Recorder(RecorderConfig(tmp_path, 0, 2), MonotonicClock(), wall=lambda: time.time() - 3600, interval=0.01)
    rank0.emit(Attached(MonotonicClock().now(), 0, 2, 10, {}))
    rank0.flush()
    following = FollowedRun(tmp_path)
    following.poll()
    assert following.state.status == "running"
    (segment,) = segments(tmp_path)
    rank0._stop.set()
    rank0._thread.join()
    os.utime(segment.path, (1.0, 1.0))
    later = FollowedRun(tmp_path)
    later.poll()
    assert later.state.status == "failed"


def test_the_recorder_touches_its_file_while_there_is_nothing_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "TOUCH_INTERVAL", 0.0)
    rank0 = Recorder(RecorderConfig(tmp_path, 0, 1), MonotonicClock(), interval=0.01)
    (segment,) = segments(tmp_path)
    os.utime(segment.path, (1.0, 1.0))
    deadline = time.monotonic() + 30
    while segment.path.stat().st_mtime < 2.0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert segment.path.stat().st_mtime > 2.0
    rank0.close()
