"""Completions: waits for any of many transfers.

In: a wire and the transfers its owner waits for. Out: those that are done. A wire with a native loop answers in one
call; any other wire gets one waiting thread per transfer, which is reused. `nudge` ends a wait from another thread.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gradwire.transport.wires.base import Delivery

# Seconds that an idle thread waits for its next transfer before it ends.
_IDLE = 5.0
# Seconds between two checks whether to end; the owner of a transfer watches its deadline.
_SLICE = 0.5


class AwaitedTransfer(Protocol):
    """The part of a wire's transfer that is used here."""

    @property
    def done(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> Delivery: ...

    def cancel(self) -> None: ...


class Completions(Protocol):
    """One owner waits; any thread may nudge."""

    def wait(self, transfers: Mapping[int, AwaitedTransfer], timeout: float) -> Sequence[int]:
        """Keys of transfers that are done; empty at the timeout or after a nudge."""
        ...

    def nudge(self) -> None: ...

    def close(self) -> None: ...


def completions_of(wire: Any) -> Completions:
    """The native loop's own wait where the wire has one, else waiting threads."""
    loop = getattr(wire, "loop", None)
    return NativeCompletions(loop) if hasattr(loop, "wait_any") else WaitingThreads()


class NativeCompletions:
    """The native loop knows which tokens are done."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop

    def wait(self, transfers: Mapping[int, Any], timeout: float) -> Sequence[int]:
        keys = {transfer.token: key for key, transfer in transfers.items()}
        done = self._loop.wait_any(list(keys), timeout)
        if not done and self._loop.stopped is not None:
            return list(transfers)  # each of them raises the reason when it is waited for
        return [keys[token] for token in done]

    def nudge(self) -> None:
        self._loop.nudge()

    def close(self) -> None:
        """The loop belongs to the wire."""


class WaitingThreads:
    """Threads that wait for one transfer each; as many as there are concurrent transfers."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._done: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._work: queue.SimpleQueue[tuple[int, AwaitedTransfer] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._threads: set[threading.Thread] = set()
        self._closing = threading.Event()

    def wait(self, transfers: Mapping[int, AwaitedTransfer], timeout: float) -> Sequence[int]:
        for key in transfers.keys() - self._seen:
            self._watch(key, transfers[key])
        self._seen &= transfers.keys()
        self._seen |= transfers.keys()
        found = []
        try:
            found.append(self._done.get(timeout=max(0.0, timeout)))
            while True:
                found.append(self._done.get_nowait())
        except queue.Empty:
            pass
        return [key for key in found if key is not None and key in transfers]

    def nudge(self) -> None:
        self._done.put(None)

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            threads = list(self._threads)
        for _ in threads:
            self._work.put(None)
        for thread in threads:
            thread.join(10 * _SLICE)

    def _watch(self, key: int, transfer: AwaitedTransfer) -> None:
        with self._lock:
            self._work.put((key, transfer))
            if self._idle > 0:
                self._idle -= 1
                return
            thread = threading.Thread(target=self._run, name="gradwire-watch", daemon=True)
            self._threads.add(thread)
        thread.start()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                item = self._work.get(timeout=_IDLE)
            except queue.Empty:
                with self._lock:
                    # `_watch` may have counted this thread as idle a moment ago.
                    if self._idle == 0 or not self._work.empty():
                        continue
                    self._idle -= 1
                break
            if item is None:
                break
            self._wait_for(*item)
            with self._lock:
                self._idle += 1
        with self._lock:
            self._threads.discard(threading.current_thread())

    def _wait_for(self, key: int, transfer: AwaitedTransfer) -> None:
        while not self._closing.is_set():
            try:
                transfer.wait(_SLICE)
            except TimeoutError:
                continue
            except Exception:  # the owner gets the same error when it waits
                pass
            self._done.put(key)
            return
