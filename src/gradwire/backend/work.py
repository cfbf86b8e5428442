"""Work: the handle of an operation that torch gets, with `wait` and `get_future`.

A future's error is raised inside a `then` callback, because torch loses the text of one that is set on it directly.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from gradwire.backend.callbacks import Callbacks
from gradwire.backend.errors import CollectiveError

Outputs = list[Tensor] | list[list[Tensor]]


def future_of(outputs: Outputs) -> Future[Any]:
    """A future for these tensors: torch refuses CUDA tensors as the result of one that was made without devices."""
    tensors = (tensor for one in outputs for tensor in ([one] if isinstance(one, Tensor) else one))
    devices = dict.fromkeys(tensor.device for tensor in tensors if tensor.is_cuda)
    return Future(devices=list(devices)) if devices else Future()


class CollectiveWork(dist.Work):
    """One operation: the thread that ran it calls `finish` once. With `callbacks`, callbacks of its futures run there
    and not on that thread."""

    def __init__(self, outputs: Outputs, callbacks: Callbacks | None = None) -> None:
        super().__init__()
        self._outputs = outputs
        self._callbacks = callbacks
        self._error: BaseException | None = None
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._futures: list[Future[Any]] = []
        self.source = -1

    def finish(self, error: BaseException | None = None) -> None:
        """The operation has ended, with or without an error."""
        with self._lock:
            if self._done.is_set():
                return
            self._error = error
            self._done.set()
            futures, self._futures = self._futures, []
        for future in futures:
            if self._callbacks is None:
                future.set_result(self._outputs)
            else:
                self._callbacks.run(partial(future.set_result, self._outputs))

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Return when it is done; raise its error. A `timeout` given here ends a send or receive, not a collective."""
        self._progress(timeout)
        if not self._done.wait(timeout.total_seconds() or None):
            raise CollectiveError(f"wait: not done after {timeout.total_seconds():g} s; the operation continues")
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> Future[Any]:
        self._run_in_background()
        if self._callbacks is not None:
            self._callbacks.yield_turn()
        base = future_of(self._outputs)
        with self._lock:
            if not self._done.is_set():
                self._futures.append(base)
                return base.then(self._outcome)
        base.set_result(self._outputs)
        return base.then(self._outcome)

    def is_completed(self) -> bool:
        self._poll()
        return self._done.is_set()

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> Outputs:  # type: ignore[override]
        return self._outputs

    def synchronize(self) -> None:
        self.wait()

    def source_rank(self) -> int:
        return self.source

    def _source_rank(self) -> int:
        return self.source

    def _outcome(self, _: Future[Any]) -> Outputs:
        if self._error is not None:
            raise self._error
        return self._outputs

    def _progress(self, timeout: timedelta) -> None:
        """Run the operation in a waiting thread; nothing when another thread runs it."""

    def _poll(self) -> None:
        """Advance the operation without waiting."""

    def _run_in_background(self) -> None:
        """Run the operation to its end without a waiting caller."""


class CombinedWork(dist.Work):
    """Several works as one: done when all are."""

    def __init__(self, works: list[CollectiveWork]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        for work in self._works:
            work.wait(timeout)
        return True

    def get_future(self) -> Future[Any]:
        future = future_of([tensor for work in self._works for tensor in work.result()])  # type: ignore[arg-type]
        parts = [work.get_future() for work in self._works]
        left = len(parts)
        lock = threading.Lock()

        def count(_: Future[Any]) -> None:
            nonlocal left
            with lock:
                left -= 1
                last = left == 0
            if last:
                future.set_result([tensor for work in self._works for tensor in work.result()])

        for part in parts:
            part.add_done_callback(count)
        if not parts:
            future.set_result([])
        return future.then(lambda done: (self.wait(), done.value())[1])

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)
