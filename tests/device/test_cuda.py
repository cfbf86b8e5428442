"""CUDA: every call goes to the stream and the device that it belongs to. torch's classes are replaced by recording
ones: this proves which calls are made, not what a GPU does with them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from gradwire.device import cuda
from gradwire.device.cuda import CudaDevice, completed_future, find_device, require_known
from gradwire.errors import ConfigError

SECOND = torch.device("cuda", 1)


class Calls(list[str]):
    """What was called, in order, with the stream that was current."""

    current = "default"

    def note(self, text: str) -> None:
        self.append(f"{text} on {self.current}")


class RecordedEvent:
    def __init__(self, calls: Calls, blocking: bool) -> None:
        self._calls, self._kind = calls, "blocking event" if blocking else "spinning event"

    def record(self, stream: RecordedStream) -> None:
        self._calls.append(f"{self._kind} of {stream.name}")


class RecordedStream:
    def __init__(self, calls: Calls, name: str) -> None:
        self._calls, self.name = calls, name

    def wait_event(self, event: object) -> None:
        self._calls.append(f"{self.name} waits")


class RecordedFuture:
    def __init__(self, calls: Calls, devices: list[torch.device]) -> None:
        self._calls = calls
        calls.append(f"future of {devices}")

    def set_result(self, result: object) -> None:
        self._calls.note("result")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    made = Calls()

    @contextmanager
    def current(name: str) -> Iterator[None]:
        before, made.current = made.current, name
        yield
        made.current = before

    def empty(nbytes: int, *, dtype: torch.dtype, pin_memory: bool) -> None:
        made.note(f"{nbytes} bytes of {dtype}, pinned {pin_memory},")

    monkeypatch.setattr(torch.cuda, "Event", lambda blocking=False: RecordedEvent(made, blocking))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: RecordedStream(made, f"a stream of {device}"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: RecordedStream(made, f"current of {device}"))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: current(stream.name))
    monkeypatch.setattr(torch.cuda, "device", lambda device: current(str(device)))
    monkeypatch.setattr(cuda, "Future", lambda devices: RecordedFuture(made, devices))
    monkeypatch.setattr(torch, "empty", empty)
    return made


def test_work_waits_and_events_belong_to_their_stream(calls: Calls) -> None:
    side = CudaDevice(SECOND).new_stream("side")
    side.launch(lambda: calls.note("a copy"))
    event = side.record_event()
    CudaDevice(SECOND).current_stream().wait_event(event)
    assert calls == ["a copy on a stream of cuda:1", "blocking event of a stream of cuda:1", "current of cuda:1 waits"]


def test_a_future_is_of_its_device_and_completed_on_the_given_stream(calls: Calls) -> None:
    device = CudaDevice(SECOND)
    device.complete(device.future(), torch.zeros(1), device.new_stream("side"))
    assert calls == [f"future of {[SECOND]}", "result on a stream of cuda:1"]


def test_memory_is_pinned_for_the_device_that_uses_it_and_not_for_the_threads(calls: Calls) -> None:
    CudaDevice(SECOND).pinned(8)
    assert calls == ["8 bytes of torch.uint8, pinned True, on cuda:1"]


def test_torch_has_what_is_called() -> None:
    assert "blocking" in inspect.signature(torch.cuda.Event.__new__).parameters
    assert all(hasattr(torch.cuda.Event, name) for name in ("query", "synchronize", "record"))
    assert hasattr(torch.cuda.Stream, "wait_event")


def test_only_gradients_that_are_needed_in_host_memory_must_be_of_a_known_device() -> None:
    tensor, unknown = torch.zeros(2), torch.zeros(2, device="meta")
    assert find_device(tensor) is None
    assert torch.equal(completed_future(tensor).wait(), tensor)
    require_known(tensor)
    assert find_device(unknown) is None
    for needs in (require_known, completed_future):
        with pytest.raises(ConfigError, match="gradients are on meta"):
            needs(unknown)


def test_devices_are_equal_by_what_they_name() -> None:
    class OnSecond:
        device = SECOND

    assert find_device(OnSecond()) == CudaDevice(SECOND)  # type: ignore[arg-type]
    assert isinstance(hash(CudaDevice(SECOND)), int)
    assert CudaDevice(SECOND) != CudaDevice(torch.device("cuda", 0))
