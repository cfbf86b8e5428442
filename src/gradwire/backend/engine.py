"""Engine: starts a group's operations in call order and runs them to completion.

A blocking call runs on the caller's thread: no other thread has to wake up. Asynchronous operations are started on the
caller's thread (everything is posted and sent) and continued by one thread per group, several at a time: each continues
when what it needs has arrived, and none waits for an earlier one to end. Callbacks of futures run elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from torch import Tensor

from gradwire.backend.call import Call
from gradwire.backend.callbacks import Callbacks
from gradwire.backend.errors import CollectiveError
from gradwire.backend.op_transfers import OpTransfers, Steps
from gradwire.backend.operation import Operation, WireOperation
from gradwire.backend.peer_group import PeerGroup
from gradwire.backend.shm_allreduce import ShmAllreduce, ShmOperation
from gradwire.backend.work import CollectiveWork, Outputs
from gradwire.errors import ConfigError, LinkError

# Concurrent operations: enough to fill a long link with a model's buckets, few enough to bound their scratch.
WINDOW: Final = 8
# Seconds between two checks of a waiting thread for signals and for a failure of the group.
_CHECK: Final = 0.1
# Seconds to wait for one of several running operations before the others are looked at again.
_TURN: Final = 0.001
_CLOSE_TIMEOUT: Final = 10.0


class OperationEngine:
    """Runs the operations of one peer group; sums between ranks of one host use `shm`."""

    def __init__(self, group: PeerGroup, name: str, shm: ShmAllreduce | None = None) -> None:
        self._group = group
        self._shm = shm
        self._name = name
        self.callbacks = Callbacks(name)
        self._number = 0
        self._order = threading.RLock()  # held while an operation is numbered and started, or run to its end
        self._changed = threading.Condition()
        self._queue: list[Operation] = []
        self._closing = False
        self._thread: threading.Thread | None = None

    @property
    def started(self) -> int:
        """How many operations were submitted."""
        return self._number

    def run(
        self, call: Call, algorithm: Callable[[OpTransfers], Steps], outputs: Outputs, timeout: float, *,
        blocking: bool, on_complete: Callable[[], None] = lambda: None, summed: Tensor | None = None,
    ) -> CollectiveWork:  # fmt: skip
        """Submit an operation. With `blocking` it is done when this returns, if no other operation is running.

        `summed` is the memory that becomes the sum over all ranks; on one host it goes through shared memory.
        """
        work = CollectiveWork(outputs, self.callbacks)
        with self._order:
            # After a failure, what other ranks left in shared memory must not count as success.
            self._group.check()
            operation: Operation
            if self._shm is not None and summed is not None:
                operation = ShmOperation(self._shm, call, self._number, summed, work, timeout, on_complete)
            else:
                transfers = OpTransfers(self._group, call, self._number)
                operation = WireOperation(transfers, algorithm(transfers), work, timeout, on_complete, self._shm)
            self._number += 1
            if blocking and not self._queue:
                self._run_now(operation)
            else:
                self._enqueue(operation)
        return work

    def _run_now(self, operation: Operation) -> None:
        try:
            operation.start()
            while not operation.finished:
                operation.block(_CHECK)
        except BaseException as error:
            self._fail(operation, error)
        else:
            operation.work.finish()

    def _enqueue(self, operation: Operation) -> None:
        with self._changed:
            if self._closing:
                raise CollectiveError("the process group was destroyed")
            start = len(self._queue) < WINDOW
        try:
            if start:
                operation.start()
        except BaseException as error:
            self._fail(operation, error)
            return
        with self._changed:
            self._queue.append(operation)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=f"gradwire-{self._name}", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                if not self._queue:
                    return
                window = self._queue[:WINDOW]
            self._advance(window)

    def _advance(self, window: list[Operation]) -> None:
        """Advance every operation once; wait for the oldest when none could continue."""
        moved = False
        for operation in window:
            try:
                moved |= self._step(operation)
            except BaseException as error:  # the top of a thread: it becomes the work's error
                self._remove(operation)
                self._fail(operation, error)
                return
        if not moved:
            try:
                window[0].block(_TURN if len(window) > 1 else 5 * _TURN)
            except BaseException as error:
                self._remove(window[0])
                self._fail(window[0], error)
                return
            if window[0].finished:
                self._remove(window[0])
                window[0].work.finish()

    def _step(self, operation: Operation) -> bool:
        if not operation.started:
            operation.start()
        moved = operation.advance()
        if operation.finished:
            self._remove(operation)
            operation.work.finish()
        return moved or operation.finished

    def _remove(self, operation: Operation) -> None:
        with self._changed:
            if operation in self._queue:
                self._queue.remove(operation)
            self._changed.notify_all()

    def _fail(self, operation: Operation, error: BaseException) -> None:
        """The group cannot continue: notify the others, end all running operations with the same message."""
        if isinstance(error, LinkError) and not isinstance(error, CollectiveError):
            error = CollectiveError(f"{operation.call}, number {operation.number} of this group: {error}")
        if isinstance(error, ConfigError) and not operation.started:
            operation.work.finish(error)
            return
        failure = self._group.fail(str(error) or type(error).__name__)
        operation.abandon()
        operation.work.finish(failure if isinstance(error, CollectiveError) else error)
        self._drop(failure)
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise error

    def _drop(self, failure: CollectiveError) -> None:
        with self._changed:
            dropped, self._queue = self._queue, []
            self._changed.notify_all()
        for operation in dropped:
            operation.abandon()
            operation.work.finish(failure)

    def close(self, *, abort: bool = False) -> None:
        """End the threads: after the running operations, or at once."""
        if abort:
            self._drop(self._group.fail("the process group was aborted"))
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_TIMEOUT)
            if self._thread.is_alive():
                self._drop(self._group.fail("the process group was destroyed while operations were running"))
                self._thread.join()
        self.callbacks.close()
        self._shm = None  # its memory is freed with its last operation
