"""Operation: the interface of a running collective for the engine, and the implementation over the wire."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from gradwire.backend.call import Call
from gradwire.backend.errors import CollectiveError
from gradwire.backend.op_transfers import OpTransfers, Steps
from gradwire.backend.shm_allreduce import ShmAllreduce
from gradwire.backend.work import CollectiveWork
from gradwire.errors import LinkError
from gradwire.transport.wires.base import Delivery, Transfer


class Operation(Protocol):
    """What an engine runs. Raises CollectiveError or LinkError where it cannot continue."""

    call: Call
    number: int
    work: CollectiveWork
    started: bool
    finished: bool

    def start(self) -> None:
        """Post and send whatever is possible without waiting."""
        ...

    def advance(self) -> bool:
        """Continue as far as possible without waiting; returns whether anything happened."""
        ...

    def block(self, seconds: float) -> None:
        """Wait for what is needed next up to `seconds`; CollectiveError at the operation's own deadline."""
        ...

    def abandon(self) -> None:
        """The operation failed: afterwards nothing reads or writes its buffers."""
        ...


class WireOperation:
    """An operation over the wire: its steps, the transfer they wait for, and the deadline."""

    def __init__(
        self, transfers: OpTransfers, steps: Steps, work: CollectiveWork, timeout: float,
        on_complete: Callable[[], None], shm: ShmAllreduce | None,
    ) -> None:  # fmt: skip
        self.transfers, self.work = transfers, work
        self.call, self.number = transfers.call, transfers.number
        self._shm = shm
        self._steps = steps
        self._timeout = timeout
        self._on_complete = on_complete
        self._awaited: Transfer | None = None
        self._deadline = 0.0
        self.started = False
        self.finished = False

    def start(self) -> None:
        """Post and send whatever is possible without waiting."""
        self.started = True
        self._deadline = time.monotonic() + self._timeout
        if self._shm is not None:
            self._shm.announce(self.call, self.number)
        self._resume(None)

    def advance(self) -> bool:
        """Continue as far as possible without waiting; returns whether anything happened."""
        moved = False
        while not self.finished and self._awaited is not None and self._awaited.done:
            self.block(0.0)
            moved = True
        return moved

    def block(self, seconds: float) -> None:
        """Wait for the next transfer up to `seconds`; CollectiveError at the operation's own deadline."""
        assert self._awaited is not None
        try:
            delivery = self._awaited.wait(max(0.0, min(seconds, self._deadline - time.monotonic())))
        except TimeoutError:
            self.transfers.group.check()
            if time.monotonic() >= self._deadline:
                raise CollectiveError(self._late()) from None
        except LinkError:
            self.transfers.group.check_after_loss()
            raise
        else:
            self._resume(delivery)

    def abandon(self) -> None:
        self.transfers.abandon()

    def _resume(self, delivery: Delivery | None) -> None:
        if delivery is not None and delivery.reason == "cancelled":
            self.transfers.group.check_after_loss()
            raise CollectiveError(f"rank {self._peer()} cancelled {self.call}, number {self.number}")
        if delivery is not None and delivery.reason == "refused" and delivery.arrived != delivery.size:
            raise CollectiveError(
                f"{self.call}, number {self.number}: rank {self._peer()} and rank "
                f"{self.transfers.group.rank} disagree about its size"
            )
        try:
            self._awaited = next(self._steps) if delivery is None else self._steps.send(delivery)
        except StopIteration:
            self.finished = True
            self._on_complete()
            self.transfers.complete()

    def _peer(self) -> int:
        assert self._awaited is not None
        return self.transfers.group.members.index(self._awaited.peer)

    def _late(self) -> str:
        return (
            f"{self.call}, number {self.number} of this group: rank {self.transfers.group.rank} waited "
            f"{self._timeout:g} s for rank {self._peer()}, which did not take part; is it alive, and did it make the "
            "same call? (init_process_group's timeout sets the limit)"
        )
