"""Simulated device: runs asynchronous work as late as events allow, or, by a seed, as early.

Its memory is host memory that tests register. Work launched on a stream waits in a queue. It runs only when somebody
waits for an event behind it, and then without anything else that no event orders before it; with a seed, some other
work that nothing holds back runs before. So code that lacks a wait reads old bytes, in every run.

`ignore` leaves out one kind of wait, so that tests can show that the code needs it:

    "wait:name"   the streams of that name do not wait for events
    "host:name"   the host does not wait for events of the streams of that name
    "future"      whoever waits for a future does not wait for the stream that completed it
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

from gradwire.device.base import DeviceStream

# A thread that only asks for an event (`query`) sees it done after this many questions.
QUESTIONS = 3


class SimulatedEvent:
    """Done when `stream` has run its first `position` entries."""

    def __init__(self, stream: SimulatedStream, position: int) -> None:
        self.stream, self.position = stream, position
        self._asked = 0

    def query(self) -> bool:
        with self.stream.device.lock:
            self._asked += 1
            if self._asked > QUESTIONS:
                self.stream.run_to(self.position)
            return self.stream.ran >= self.position

    def synchronize(self) -> None:
        device = self.stream.device
        with device.lock:
            device.waiting_threads.add(threading.current_thread().name)
            if f"host:{self.stream.name}" != device.ignore:
                device.run_some()
                self.stream.run_to(self.position)


class SimulatedStream:
    """Entries are operations, or events that the stream waits for."""

    def __init__(self, device: SimulatedDevice, name: str) -> None:
        self.device, self.name = device, name
        self._entries: deque[Callable[[], object] | SimulatedEvent] = deque()
        self.queued = self.ran = 0

    def launch(self, operation: Callable[[], object]) -> None:
        with self.device.lock:
            self._put(operation)

    def current(self) -> AbstractContextManager[None]:
        return self.device.current(self)

    def wait_event(self, event: Any) -> None:
        with self.device.lock:
            if f"wait:{self.name}" != self.device.ignore:
                self._put(event)

    def record_event(self) -> SimulatedEvent:
        with self.device.lock:
            return SimulatedEvent(self, self.queued)

    def run_to(self, position: int) -> None:
        while self.ran < position:
            entry = self._entries.popleft()
            if isinstance(entry, SimulatedEvent):
                entry.stream.run_to(entry.position)
            else:
                with self.device.current(self):
                    entry()
            self.ran += 1

    def _put(self, entry: Callable[[], object] | SimulatedEvent) -> None:
        self._entries.append(entry)
        self.queued += 1


class SimulatedFuture(Future[Any]):
    """Behaves as torch's futures with devices do: callbacks have a stream that waits for the one that completed it."""

    def __init__(self, device: SimulatedDevice) -> None:
        super().__init__()
        self.device = device
        self.event: SimulatedEvent | None = None

    def wait(self) -> Any:
        result = super().wait()
        self.follow(self.device.current_stream())
        return result

    def follow(self, stream: SimulatedStream) -> None:
        if self.event is not None and self.device.ignore != "future":
            stream.wait_event(self.event)

    def then(self, callback: Callable[[Any], Any]) -> Any:
        child = SimulatedFuture(self.device)

        def run(_: object) -> None:
            stream = self.device.new_stream("callback")
            self.follow(stream)
            try:
                with self.device.current(stream):
                    result = callback(self)
            except Exception as error:
                child.set_exception(error)
            else:
                self.device.complete(child, result, stream)

        self.add_done_callback(run)
        return child


class SimulatedDevice:
    """`find` is what a session asks for the device of a tensor. `waiting_threads` are those of the
    host that waited for events."""

    def __init__(self, seed: int | None = None, ignore: str = "") -> None:
        self.lock = threading.RLock()
        self.ignore = ignore
        self.waiting_threads: set[str] = set()
        self._random = random.Random(seed) if seed is not None else None
        self._memory: set[int] = set()
        self._streams: list[SimulatedStream] = []
        self._current = threading.local()
        self.default = self.new_stream("training")

    def memory(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        tensor = torch.zeros(shape, dtype=dtype)
        self._memory.add(tensor.untyped_storage().data_ptr())
        return tensor

    def find(self, tensor: Tensor) -> SimulatedDevice | None:
        return self if tensor.untyped_storage().data_ptr() in self._memory else None

    def current_stream(self) -> SimulatedStream:
        return getattr(self._current, "stream", self.default)

    @contextmanager
    def current(self, stream: SimulatedStream) -> Iterator[None]:
        before = self.current_stream()
        self._current.stream = stream
        try:
            yield
        finally:
            self._current.stream = before

    def new_stream(self, name: str) -> SimulatedStream:
        stream = SimulatedStream(self, name)
        with self.lock:
            self._streams.append(stream)
        return stream

    def empty(self, numel: int, dtype: torch.dtype, stream: DeviceStream) -> Tensor:
        return torch.full((numel * dtype.itemsize,), 0x7F, dtype=torch.uint8).view(dtype)

    def pinned(self, nbytes: int) -> Tensor:
        return torch.full((nbytes,), 0x7F, dtype=torch.uint8)  # as floating point: 3.4e38, or NaN in half precision

    def future(self) -> Future[Tensor]:
        return SimulatedFuture(self)

    def complete(self, future: Future[Tensor], result: Tensor, stream: DeviceStream) -> None:
        assert isinstance(future, SimulatedFuture)
        assert isinstance(stream, SimulatedStream)
        future.event = stream.record_event()
        future.set_result(result)

    def finish(self) -> None:
        """Run the training stream to its end, and what events order before that."""
        with self.lock:
            self.default.run_to(self.default.queued)

    def run_some(self) -> None:
        """With a seed, run what nothing holds back on some of the streams, in any order."""
        if self._random is not None:
            for stream in self._random.sample(self._streams, len(self._streams)):
                if self._random.random() < 0.5:
                    stream.run_to(self._random.randint(stream.ran, stream.queued))
