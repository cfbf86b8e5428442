"""Pipeline: runs exchanges through stations in a row; each station is one thread with one lane.

An exchange is a generator of operations. Station i runs it up to its i-th operation and starts that on lane i; station
i + 1 waits for the operation and continues. Every station takes exchanges in the order they were submitted, so the
operations of each lane have the same order on all ranks, while several exchanges are in flight at once.

The first failure stops the pipeline: every exchange still inside and every later one fails with the same error.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gradwire.closing import Closing
from gradwire.errors import LinkError
from gradwire.runtime.profiling import span
from gradwire.transport.lanes.base import Lane, Op, Pending, Timing

log = logging.getLogger(__name__)

Done = Callable[[BaseException | None], None]
OnTiming = Callable[[Timing], None]
# Seconds of encoding or decoding, and when they ended.
OnWork = Callable[[float, float], None]


@dataclass(slots=True)
class _RunningExchange:
    exchange: Iterator[Op]
    done: Done
    on_timing: OnTiming
    pending: Pending | None = None


class Pipeline:
    """Owns its threads and lanes; `close` ends both."""

    def __init__(self, lanes: Sequence[Lane], on_timing: OnTiming, on_work: OnWork = lambda seconds, now: None) -> None:
        self._lanes = list(lanes)
        self._open = Closing(*(lane.close for lane in self._lanes))
        self._on_timing = on_timing
        self._on_work = on_work
        self._failure: BaseException | None = None
        # Held while an exchange is accepted, and while `close` ends that.
        self._entry, self._closing = threading.Lock(), False
        self._queues: list[queue.SimpleQueue[_RunningExchange | None]] = [
            queue.SimpleQueue() for _ in range(len(self._lanes) + 1)
        ]
        self._threads = [
            threading.Thread(target=self._station, args=(index,), name=f"gradwire-{index}", daemon=True)
            for index in range(len(self._queues))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def lanes(self) -> int:
        return len(self._lanes)

    def submit(self, exchange: Iterator[Op], done: Done, on_timing: OnTiming | None = None) -> None:
        """Run an exchange to its end; `done` is called with the outcome, on a station's thread. If `done` raises on
        success, it is called a second time with that error as the outcome. After `close` it is called at once, here."""
        with self._entry:
            closed = self._closing
            if not closed:
                self._queues[0].put(_RunningExchange(exchange, done, on_timing or self._on_timing))
        if closed:
            done(LinkError("the connection to the other ranks was closed; close a handle after the last step only"))

    def run(self, exchange: Iterator[Op], on_timing: OnTiming | None = None) -> None:
        """Run an exchange and wait for its end; raises its error. The lane's deadline ends the wait."""
        ended, errors = threading.Event(), list[BaseException]()

        def done(error: BaseException | None) -> None:
            errors.extend([error] if error else [])
            ended.set()

        self.submit(exchange, done, on_timing)
        ended.wait()
        if errors:
            raise errors[0]

    def close(self, timeout: float = 10.0) -> None:
        """Let exchanges in flight finish or fail, stop the threads, close the lanes. After an error, call it again."""
        with self._entry:
            self._closing = True
            self._queues[0].put(None)
        for thread in self._threads:
            thread.join(timeout)
        stuck = [thread.name for thread in self._threads if thread.is_alive()]
        if stuck:
            raise LinkError(f"threads {', '.join(stuck)} still wait for a peer after {timeout:g} s; close again later")
        self._open.close()
        self._lanes.clear()  # a process group's sockets are closed with the last reference to it

    def _work(self, exchange: Iterator[Op]) -> Op:
        """Run an exchange up to its next operation, and report how long that took."""
        began = time.monotonic()
        try:
            with span("encode"):
                return next(exchange)
        finally:
            now = time.monotonic()
            self._on_work(now - began, now)

    def _station(self, index: int) -> None:
        inbox = self._queues[index]
        while (item := inbox.get()) is not None:
            self._advance(index, item)
        if index + 1 < len(self._queues):
            self._queues[index + 1].put(None)

    def _advance(self, index: int, item: _RunningExchange) -> None:
        """Wait for the exchange's last operation, run it up to the next one, start that."""
        try:
            if self._failure is not None:
                raise self._failure
            if item.pending is not None:
                with span("wire"):
                    timing = item.pending.wait()
                item.on_timing(timing)
            op = self._work(item.exchange)
            item.pending = self._lanes[index].start(op)
        except StopIteration:
            _report(item.done, None)
        except BaseException as error:  # the top of this thread: the caller's future carries the error
            self._failure = self._failure or error
            _report(item.done, error)
        else:
            self._queues[index + 1].put(item)


def _report(done: Done, outcome: BaseException | None) -> None:
    """Call `done`; its own error must not end the station's thread, which every later exchange needs."""
    try:
        done(outcome)
    except BaseException as error:
        log.exception("the callback of an exchange failed")
        if outcome is None:
            _report(done, error)
