"""A bucket whose plain all-reduce fails is told of before the training loop hears it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.futures import Future

from gradwire.clock import MonotonicClock
from gradwire.errors import LinkError
from gradwire.events import Event, Failed
from gradwire.runtime.bucket_work import EventReporter, PlainWork
from gradwire.types import Bucket


class Kept(list[Event]):
    def emit(self, event: Event) -> None:
        self.append(event)


def test_a_failed_all_reduce_is_an_event_and_a_link_error() -> None:
    told, done = Kept(), Future[list[Tensor]]()
    bucket = Bucket(index=0, step=7, numel=4, itemsize=4, slices=(), is_last=True)
    joint = PlainWork(EventReporter(told, MonotonicClock()), done, bucket, torch.zeros(4), 16, 0.0)
    done.set_exception(RuntimeError("connection closed by peer"))
    with pytest.raises(LinkError, match="connection closed by peer"):
        joint.wait()
    (failed,) = told
    assert isinstance(failed, Failed)
    assert failed.step == 7
    assert "connection closed by peer" in failed.error
