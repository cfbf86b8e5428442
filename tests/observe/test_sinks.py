"""Other tools get the numbers under stable names."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradwire.clock import VirtualClock
from gradwire.events import Attached, Decided, Ended, Event, Failed, Faulted, Noted, Stepped
from gradwire.observe.event_bus import EventBus, UserNote
from gradwire.observe.reader import read
from gradwire.observe.recorder import Recorder, RecorderConfig
from gradwire.observe.sinks import Dictionaries, Logging, Scalars
from tests.observe.recordings import fold, small
from tests.presence import needs

STEP = Stepped(1.0, 7, 0.5, 0.3, 0.05, 0.1, 0.05, 400, 100, 600, "int8", residual=0.2)


class Pad:
    """What TensorBoard's writer would have been logged."""

    def __init__(self) -> None:
        self.logged: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.logged.append((tag, scalar_value, global_step))


def test_scalars_have_names_values_and_steps() -> None:
    writer = Pad()
    sink = Scalars(writer)
    sink.emit(STEP)
    sink.emit(Noted(1.0, 8, accuracy=0.9, values={"mine": 3.0}))
    sink.emit(Ended(1.0, 9))
    assert ("gradwire/step/wire", 0.1, 7) in writer.logged
    assert ("gradwire/bytes/times_less", 6.0, 7) in writer.logged
    assert ("gradwire/noted/mine", 3.0, 8) in writer.logged
    assert not any(tag == "gradwire/noted/loss" for tag, _, _ in writer.logged)


def test_dictionaries_never_go_back_in_steps(tmp_path: Path) -> None:
    logged: list[tuple[dict[str, float], int]] = []

    def log(values: dict[str, float], step: int) -> None:
        logged.append((values, step))

    sink = Dictionaries(log)
    _, records = fold(small(tmp_path))
    for record in records:
        sink.emit(record.event)
    sink.emit(STEP)
    steps = [step for _, step in logged]
    assert steps == sorted(steps)
    assert len(logged) > 100


@pytest.mark.parametrize(
    ("event", "level", "words"),
    [
        (Decided(1.0, 3, 0, "int8", "the link is slow", 2), logging.INFO, "level int8: the link is slow"),
        (Faulted(1.0, 3, "peer_lost", "rank 2 is silent"), logging.WARNING, "rank 2 is silent"),
        (Failed(1.0, 3, "LinkError: gone"), logging.ERROR, "LinkError: gone"),
        (STEP, logging.DEBUG, "at int8"),
    ],
)
def test_logging_uses_levels_by_weight(caplog: pytest.LogCaptureFixture, event: Event, level: int, words: str) -> None:
    with caplog.at_level(logging.DEBUG, "gradwire"):
        Logging().emit(event)
    [record] = caplog.records
    assert record.levelno == level
    assert words in record.getMessage()


def test_a_sink_added_late_receives_attached_and_one_that_raises_is_removed() -> None:
    watch, received = EventBus(VirtualClock()), list[Any]()
    watch.emit(Attached(1.0, 0, 1, 5, {}))
    calls: list[Event] = []

    def broken(event: Event) -> None:
        calls.append(event)
        raise RuntimeError("no")

    watch.add(broken)
    watch.add(received.append)
    watch.note(3, UserNote(float("nan"), values={"good": 1.0, "bad": float("inf")}))
    watch.close(4)
    assert len(calls) == 1
    assert [type(event) for event in received] == [Attached, Noted, Ended]
    assert received[1].loss is None
    assert received[1].values == {"good": 1.0}


@pytest.mark.parametrize("number", [np.float64, np.float32, np.int64, torch.tensor])
def test_tensors_and_numpy_scalars_are_numbers_in_the_recording(tmp_path: Path, number: Callable[[int], Any]) -> None:
    clock = VirtualClock()
    watch = EventBus(clock, Recorder(RecorderConfig(tmp_path, 0, 1), clock))
    two = number(2)
    watch.note(3, UserNote(two, two, two, two, {"mine": two}))
    watch.close(4)
    [noted] = [record.event for record in read(tmp_path) if isinstance(record.event, Noted)]
    assert (noted.loss, noted.accuracy, noted.epoch, noted.total_steps, noted.values) == (2.0, 2.0, 2.0, 2, {"mine": 2})


def test_tensorboard_reads_back_what_its_writer_was_given(tmp_path: Path) -> None:
    needs("tensorboard", "tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path))
    Scalars(writer).emit(STEP)
    writer.close()
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    (point,) = found.Scalars("gradwire/step/wire")
    assert (point.step, point.value) == (7, pytest.approx(0.1))
