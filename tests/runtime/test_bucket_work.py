"""Bucket work: a failed plain all-reduce is recorded before the training loop gets the error."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.futures import Future

from gradwire.clock import MonotonicClock
from gradwire.errors import LinkError
from gradwire.events import Event, Failed
from gradwire.runtime.bucket_work import PlainWork
from gradwire.runtime.event_reporter import EventReporter
from gradwire.types import Bucket


class EventList(list[Event]):
    def emit(self, event: Event) -> None:
        self.append(event)


def test_a_failed_all_reduce_is_an_event_and_a_link_error() -> None:
    events, done = EventList(), Future[list[Tensor]]()
    bucket = Bucket(index=0, step=7, numel=4, itemsize=4, slices=(), is_last=True)
    work = PlainWork(EventReporter(events, MonotonicClock()), done, bucket, torch.zeros(4), 16, 0.0)
    done.set_exception(RuntimeError("connection closed by peer"))
    with pytest.raises(LinkError, match="connection closed by peer"):
        work.wait()
    (failed,) = events
    assert isinstance(failed, Failed)
    assert failed.step == 7
    assert "connection closed by peer" in failed.error
