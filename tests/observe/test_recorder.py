"""The recorder keeps events in order, never blocks, and keeps disk errors away from training."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gradwire.clock import MonotonicClock, VirtualClock
from gradwire.errors import ConfigError
from gradwire.events import Attached, Dropped, Ended, Noted, Opened, Synchronised, Warned
from gradwire.observe.files import segments
from gradwire.observe.reader import Damage, Follower, read
from gradwire.observe.recorder import Recorder, RecorderConfig

ATTACHED = Attached(0.0, 0, 2, 10, {"level": "off"})


def noted(step: int) -> Noted:
    return Noted(1.0, step, loss=float(step))


def steps(run: Path) -> list[int]:
    return [record.event.step for record in read(run) if isinstance(record.event, Noted)]


def test_every_event_is_there_in_order_after_close(tmp_path: Path) -> None:
    recorder = Recorder(RecorderConfig(tmp_path, 3, 4), MonotonicClock(), interval=0.01)
    recorder.emit(ATTACHED)
    for step in range(5000):
        recorder.emit(noted(step))
    recorder.close()
    assert steps(tmp_path) == list(range(5000))
    assert recorder.dropped == 0
    [segment] = segments(tmp_path)
    assert segment.packed
    assert segment.rank == 3
    assert not [thread for thread in threading.enumerate() if thread.name == "gradwire-recorder"]


def test_buckets_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    bucket = Synchronised(0.0, 1, 0, "off", 8, 8, 2, 0.1)
    for buckets in (False, True):
        folder = tmp_path / str(buckets)
        recorder = Recorder(RecorderConfig(folder, 0, 1, buckets), MonotonicClock())
        recorder.emit(bucket)
        recorder.close()
        assert any(isinstance(record.event, Synchronised) for record in read(folder)) is buckets


def test_a_full_buffer_drops_events_and_counts_them(tmp_path: Path) -> None:
    recorder = Recorder(RecorderConfig(tmp_path, 0, 1, capacity=10), MonotonicClock(), interval=60.0)
    for step in range(25):
        recorder.emit(noted(step))
    assert recorder.dropped == 15
    recorder.close()
    events = [record.event for record in read(tmp_path)]
    assert steps(tmp_path) == list(range(10))
    assert [event.count for event in events if isinstance(event, Dropped)] == [15]


def test_segments_rotate_are_compressed_and_each_stands_alone(tmp_path: Path) -> None:
    recorder = Recorder(RecorderConfig(tmp_path, 0, 1, segment_bytes=2000), MonotonicClock(), interval=60.0)
    recorder.emit(ATTACHED)
    for step in range(300):
        recorder.emit(noted(step))
        if step % 20 == 0:
            recorder.flush()
    recorder.close()
    found = segments(tmp_path)
    assert len(found) > 5
    assert all(segment.packed for segment in found)
    assert steps(tmp_path) == list(range(300))
    for number, segment in enumerate(found):
        first, second, *_ = (record.event for record in read(segment.path))
        assert isinstance(first, Opened)
        assert first.segment == number
        assert second == ATTACHED


def test_a_second_attempt_in_the_same_folder_continues_after_the_first(tmp_path: Path) -> None:
    for attempt in range(2):
        recorder = Recorder(RecorderConfig(tmp_path, 0, 1), MonotonicClock())
        recorder.emit(noted(attempt))
        recorder.close()
    assert [segment.number for segment in segments(tmp_path)] == [0, 1]
    assert steps(tmp_path) == [0, 1]


def test_a_folder_that_cannot_be_made_is_a_mistake_of_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="record: cannot write to"):
        Recorder(RecorderConfig(tmp_path / "file", 0, 1), MonotonicClock())


def test_an_event_that_has_no_json_is_dropped_alone_and_the_recording_is_finished(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(RecorderConfig(tmp_path, 0, 1), MonotonicClock(), interval=60.0)
    for step in range(10):
        recorder.emit(noted(step) if step % 4 else Noted(1.0, step, values={"odd": object()}))  # type: ignore[dict-item]
    recorder.close()
    assert recorder.dropped == 3
    assert [segment.packed for segment in segments(tmp_path)] == [True]
    assert steps(tmp_path) == [1, 2, 3, 5, 6, 7, 9]
    events = [record.event for record in read(tmp_path)]
    assert [event.count for event in events if isinstance(event, Dropped)] == [3]
    assert sum(isinstance(event, Warned) for event in events) == 1
    assert caplog.text.count("training continues") == 1


def test_a_disk_that_is_full_from_the_start_ends_no_training_and_is_used_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(segment: object, body: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    clock = VirtualClock()
    with monkeypatch.context() as patched:
        patched.setattr("gradwire.observe.recorder._Segment.append", full)
        recorder = Recorder(RecorderConfig(tmp_path, 0, 1), clock, interval=60.0)
        recorder.emit(noted(0))
        recorder.flush()
    clock.advance(60.0)
    recorder.emit(noted(1))
    recorder.close()
    opened, *events = [record.event for record in read(tmp_path)]
    assert isinstance(opened, Opened)
    assert [type(event) for event in events] == [Noted, Warned, Dropped]
    assert steps(tmp_path) == [1]


FULL = """
import logging, resource, sys
from pathlib import Path
from gradwire.clock import VirtualClock
from gradwire.events import Noted
from gradwire.observe.recorder import Recorder, RecorderConfig
logging.basicConfig(format="%(message)s")
clock = VirtualClock()
recorder = Recorder(RecorderConfig(Path(sys.argv[1]), 0, 1), clock, interval=60.0)
def put(first):
    for step in range(first, first + 50):
        recorder.emit(Noted(clock.now(), step, loss=0.5))
    recorder.flush()
put(0)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
put(50); clock.advance(60.0); put(100)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
clock.advance(60.0)
put(150)
recorder.close()
"""


def test_a_full_disk_is_one_warning_and_recording_resumes_when_there_is_room(tmp_path: Path) -> None:
    """The kernel itself refuses the writes (a limit on file size stands in for the disk's)."""
    command = [sys.executable, "-c", FULL, str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("training continues") == 1
    damage = Damage()
    events = [record.event for record in read(tmp_path, damage)]
    assert not damage
    kept = [event.step for event in events if isinstance(event, Noted)]
    assert kept == [*range(50), *range(150, 200)]
    assert sum(isinstance(event, Warned) for event in events) == 1
    assert sum(event.count for event in events if isinstance(event, Dropped)) == 100


CRASH = """
import os, signal, sys
from pathlib import Path
from gradwire.clock import MonotonicClock
from gradwire.events import Noted
from gradwire.observe.recorder import Recorder, RecorderConfig
recorder = Recorder(RecorderConfig(Path(sys.argv[1]), 0, 1), MonotonicClock(), interval=0.05)
for step in range(1000):
    recorder.emit(Noted(1.0, step))
print("emitted", flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_what_was_written(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CRASH, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    follower, seen, deadline = Follower(tmp_path), 0, time.monotonic() + 30
    while seen < 1001 and time.monotonic() < deadline:
        seen += len(follower.poll())
    process.stdin.write("\n")
    process.stdin.close()
    process.wait(30)
    process.stdout.close()
    assert steps(tmp_path) == list(range(1000))


def test_a_follower_sees_each_record_once_across_rotation_and_the_end(tmp_path: Path) -> None:
    recorder = Recorder(RecorderConfig(tmp_path, 0, 1, segment_bytes=3000), MonotonicClock(), interval=60.0)
    follower = Follower(tmp_path)
    seen: list[int] = []
    for step in range(400):
        recorder.emit(noted(step))
        if step % 7 == 0:
            recorder.flush()
        if step % 11 == 0:
            seen += [record.event.step for record in follower.poll() if isinstance(record.event, Noted)]
    recorder.emit(Ended(1.0, 400))
    recorder.close()
    seen += [record.event.step for record in follower.poll() if isinstance(record.event, Noted)]
    assert seen == list(range(400))
    assert follower.poll() == []
    assert not follower.damage
