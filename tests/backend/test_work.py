"""Work: its futures take the tensors of every device that its outputs have."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gradwire.backend import work
from gradwire.backend.work import CollectiveWork, future_of


def test_a_future_of_cuda_tensors_is_made_for_their_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(work, "Future", lambda **options: made.append(options.get("devices")))
    with FakeTensorMode():
        host, first, second = (torch.zeros(1, device=name) for name in ("cpu", "cuda:0", "cuda:1"))
        future_of([host])
        future_of([first, first])
        future_of([[host, first], [second]])
    assert made == [None, [torch.device("cuda:0")], [torch.device("cuda:0"), torch.device("cuda:1")]]


def test_a_future_of_host_tensors_has_them_when_the_work_has_finished() -> None:
    tensor = torch.ones(2)
    done = CollectiveWork([tensor])
    future = done.get_future()
    done.finish()
    assert torch.equal(future.wait()[0], tensor)
