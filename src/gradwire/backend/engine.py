"""Engine: carries out a group's operations in the order they were asked for.

A caller that waits anyway carries its operation out itself: no thread has to wake up. Others are started on the
caller's thread (everything is posted and sent) and carried on by one thread per group, several at a time: each moves
whenever what it needs has arrived, and none has to wait for an earlier one to end. Callbacks of futures run elsewhere.
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

# Operations under way at once: enough to fill a long link with a model's buckets, few enough to bound their scratch.
WINDOW: Final = 8
# A waiting thread listens this often for signals and for word that the group has failed.
_LISTEN: Final = 0.1
# With several operations under way, how long one is waited for before the others are looked at again.
_GLANCE: Final = 0.001
_STOP: Final = 10.0


class OperationEngine:
    """Runs the operations of one circle."""

    def __init__(self, circle: PeerGroup, name: str, board: ShmAllreduce | None = None) -> None:
        self._circle = circle
        self._board = board
        self._name = name
        self.callbacks = Callbacks(name)
        self._number = 0
        self._order = threading.RLock()  # held while an operation is numbered and started, or carried out at once
        self._changed = threading.Condition()
        self._queue: list[Operation] = []
        self._closing = False
        self._thread: threading.Thread | None = None

    @property
    def started(self) -> int:
        """How many operations were taken on."""
        return self._number

    def run(
        self, call: Call, algorithm: Callable[[OpTransfers], Steps], outputs: Outputs, timeout: float, *, at_once: bool,
        settle: Callable[[], None] = lambda: None, summed: Tensor | None = None,
    ) -> CollectiveWork:  # fmt: skip
        """Take an operation on. With `at_once` it is done when this returns, if nothing else is under way.

        `summed` is what becomes the sum of all ranks' memory; on one host that goes over the board.
        """
        work = CollectiveWork(outputs, self.callbacks)
        with self._order:
            # Who comes after a failure must not take what the others left on the board for success.
            self._circle.check()
            operation: Operation
            if self._board is not None and summed is not None:
                operation = ShmOperation(self._board, call, self._number, summed, work, timeout, settle)
            else:
                flight = OpTransfers(self._circle, call, self._number)
                operation = WireOperation(flight, algorithm(flight), work, timeout, settle, self._board)
            self._number += 1
            if at_once and not self._queue:
                self._carry_out(operation)
            else:
                self._enqueue(operation)
        return work

    def _carry_out(self, operation: Operation) -> None:
        try:
            operation.start()
            while not operation.finished:
                operation.block(_LISTEN)
        except BaseException as error:
            self._fail(operation, error)
        else:
            operation.work.finish()

    def _enqueue(self, operation: Operation) -> None:
        with self._changed:
            if self._closing:
                raise CollectiveError("the process group was destroyed")
            begin = len(self._queue) < WINDOW
        try:
            if begin:
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
            self._turn(window)

    def _turn(self, window: list[Operation]) -> None:
        """Look at every operation once; wait for the oldest when none could move."""
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
                window[0].block(_GLANCE if len(window) > 1 else 5 * _GLANCE)
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
        """The group cannot go on: tell the others, end everything under way with the same words."""
        if isinstance(error, LinkError) and not isinstance(error, CollectiveError):
            error = CollectiveError(f"{operation.call}, number {operation.number} of this group: {error}")
        if isinstance(error, ConfigError) and not operation.started:
            operation.work.finish(error)
            return
        failure = self._circle.fail(str(error) or type(error).__name__)
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
        """End the threads: after what is under way, or at once."""
        if abort:
            self._drop(self._circle.fail("the process group was aborted"))
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_STOP)
            if self._thread.is_alive():
                self._drop(self._circle.fail("the process group was destroyed with operations under way"))
                self._thread.join()
        self.callbacks.close()
        self._board = None  # its memory goes with its last operation
