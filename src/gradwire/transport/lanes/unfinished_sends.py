"""Unfinished sends: what operations have sent and their receivers have not confirmed yet.

An operation is complete when everything it receives has arrived; waiting for the confirmation of its own sends would
cost another way's delay. So these are detached from the operation's buffers and kept here until the wire reports how
they ended. The next operation, or `finish`, raises a failure. Memory is bounded: above LIMIT the oldest are waited for.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from gradwire.errors import LinkError, PeerClosedError
from gradwire.transport.wires.base import Delivery, Transfer

# Bytes: twice what 1 Gbit/s carries in a round trip of 250 ms.
LIMIT: Final = 64 << 20


class _Send(NamedTuple):
    transfer: Transfer
    nbytes: int
    deadline: float


class UnfinishedSends:
    """Those of all lanes of a carrier; used by several threads. `timeout` is how many seconds an operation may take."""

    def __init__(self, timeout: float, limit: int = LIMIT) -> None:
        self.timeout = timeout
        self._limit = limit
        self._lock = threading.Lock()
        self._sends: deque[_Send] = deque()
        self._nbytes = 0
        self._failed = False

    def __len__(self) -> int:
        return len(self._sends)

    def deadline(self) -> float:
        """Of an operation that starts now."""
        return time.monotonic() + self.timeout

    def add(self, transfers: Iterable[Transfer], nbytes: int, deadline: float) -> None:
        """Take over sends of `nbytes` each; afterwards their buffers may be changed."""
        with self._lock:
            for transfer in transfers:
                if transfer.done:
                    self.result(transfer, deadline)
                    continue
                transfer.detach()
                self._sends.append(_Send(transfer, nbytes, deadline))
                self._nbytes += nbytes
            while self._nbytes > self._limit:
                self._finish_oldest()

    def check(self) -> None:
        """Forget what has ended; LinkError for a send that failed or is late."""
        with self._lock:
            for _ in range(len(self._sends)):
                send = self._sends[0]
                if send.transfer.done or send.deadline <= time.monotonic():
                    self._finish_oldest()
                else:
                    self._sends.rotate(-1)

    def finish(self) -> None:
        """Wait until all have ended, before connections are closed. A peer that closed first wanted no more. After a
        failure nothing is waited for: it was raised, and the peers fail too."""
        with self._lock:
            while self._sends and not self._failed:
                send = self._take_oldest()
                with suppress(PeerClosedError):
                    self._result(send.transfer, send.deadline)

    def result(self, transfer: Transfer, deadline: float) -> Delivery:
        """Wait for a transfer's end; LinkError names the peer that failed, is late or did not take part."""
        try:
            return self._result(transfer, deadline)
        except LinkError:
            self._failed = True
            raise

    def _result(self, transfer: Transfer, deadline: float) -> Delivery:
        try:
            delivery = transfer.wait(max(0.0, deadline - time.monotonic()))
        except TimeoutError as error:
            raise LinkError(
                f"rank {transfer.peer} is alive but an operation with it did not complete within {self.timeout:g} s; "
                "GRADWIRE_TRANSPORT_TIMEOUT sets how long to wait"
            ) from error
        if delivery.reason in ("refused", "cancelled"):
            raise LinkError(
                f"rank {transfer.peer} did not take part in the operation: its transfer was {delivery.reason}"
            )
        return delivery

    def _finish_oldest(self) -> None:
        send = self._take_oldest()
        self.result(send.transfer, send.deadline)

    def _take_oldest(self) -> _Send:
        send = self._sends.popleft()
        self._nbytes -= send.nbytes
        return send
