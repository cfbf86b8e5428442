"""Shared-memory all-reduce: sums between ranks of one host, added in shared memory by native code.

In: a call and flat memory. Out: an operation for the engine, with the errors of one that goes over the wire: ranks that
called something else, that did not take part, that are lost. What native code cannot add (half precision, complex
numbers, operators other than a sum) torch reduces in the same slots.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from gradwire import _native
from gradwire._native import ShmKind, ShmStatus
from gradwire.backend import tags
from gradwire.backend.call import Call, unpack
from gradwire.backend.errors import CollectiveError
from gradwire.backend.peer_group import PeerGroup
from gradwire.backend.reduce_ops import fold
from gradwire.backend.work import CollectiveWork
from gradwire.errors import LinkError
from gradwire.transport.wires.base import Transfer
from gradwire.transport.wires.fd_passing import CREDENTIAL_BYTES, FdOffer, receive_fd
from gradwire.transport.wires.mixed import MixedWire

# Bytes of a rank's slot. Between 64 KB and 1 MB the best differs with the number of ranks.
# Measured: docs/results/backend.md, cross-over.
SLOT: Final = 256 << 10
# From this size on, more than two ranks sum one share each: below, both ways take the same time; at 1 MB shares are
# faster.
SHARDED: Final = 256 << 10
# Seconds that a rank polls, yielding the processor, before it sleeps: longer than another core needs to copy a small
# tensor, shorter than two context switches.
SPIN: Final = 50e-6
_HEADER: Final = 56
_FETCH: Final = 10.0
_KINDS: Final = {
    torch.float32: ShmKind.float32, torch.float64: ShmKind.float64, torch.int8: ShmKind.int8,
    torch.uint8: ShmKind.int8, torch.int16: ShmKind.int16, torch.int32: ShmKind.int32,
    torch.int64: ShmKind.int64,
}  # fmt: skip


class ShmAllreduce:
    """One group's shared memory. Operations use it one after another, in the order of their numbers."""

    def __init__(self, native: _native.ShmAllreduce, group: PeerGroup) -> None:
        self.native = native
        self.group = group
        self.submitted = self.done = 0

    def announce(self, call: Call, number: int) -> None:
        """Announce, to ranks that wait in shared memory, that this rank's call `number` goes over the wire."""
        self.native.announce(number, self.submitted, call.pack(number, 0)[:_HEADER])

    def rows(self, phase: int, offset: int, like: Tensor) -> list[Tensor]:
        """What every rank has copied into its slot at `offset`, as flat tensors like `like`."""
        return [_tensor_at(self.native.slot(phase, rank) + offset, like) for rank in range(self.group.size)]


class ShmOperation:
    """One sum in shared memory; the counterpart of `operation.WireOperation`."""

    def __init__(
        self, shm: ShmAllreduce, call: Call, number: int, flat: Tensor, work: CollectiveWork, timeout: float,
        on_complete: Callable[[], None],
    ) -> None:  # fmt: skip
        self.call, self.number, self.work = call, number, work
        self._shm, self._flat = shm, flat
        self._timeout = timeout
        self._on_complete = on_complete
        self._turn = shm.submitted
        shm.submitted += 1
        self._deadline = 0.0
        self._entered = False
        self.started = self.finished = False

    def start(self) -> None:
        """Copy in what is possible without waiting."""
        self.started = True
        self._deadline = time.monotonic() + self._timeout
        self.advance()

    def advance(self) -> bool:
        """Continue as far as possible without waiting; returns whether it is done."""
        if self._my_turn():
            self._step(0.0)
        return self.finished

    def block(self, seconds: float) -> None:
        """Wait up to `seconds`; CollectiveError at the operation's own deadline."""
        if not self._my_turn():
            raise AssertionError("an operation before this one is not done")
        left = self._deadline - time.monotonic()
        self._step(max(0.0, min(seconds, left)))
        if not self.finished:
            self._check()

    def abandon(self) -> None:
        """The operation failed. No other rank uses its memory."""

    def _my_turn(self) -> bool:
        if self._turn != self._shm.done:
            return False
        if not self._entered:
            self._entered = True
            self._begin()
        return True

    def _begin(self) -> None:
        flat, reduce_op, size = self._flat, self.call.reduce_op, self._shm.group.size
        kind = _KINDS.get(flat.dtype, ShmKind.caller) if reduce_op == "sum" else ShmKind.caller
        header = self.call.pack(self.number, flat.nbytes)[:_HEADER]
        self._shm.native.begin(
            self.number, header, flat.data_ptr(), flat.nbytes, flat.element_size(), kind,
            size > 2 and flat.nbytes >= SHARDED,
        )  # fmt: skip

    def _step(self, seconds: float) -> None:
        native = self._shm.native
        status = native.step(seconds)
        while status == ShmStatus.fold:
            self._fold()
            status = native.step(seconds)
        if status == ShmStatus.differs:
            raise CollectiveError(self._disagreement())
        if status == ShmStatus.done:
            self._on_complete()
            self._shm.done += 1
            self.finished = True

    def _fold(self) -> None:
        native, item = self._shm.native, self._flat.element_size()
        part = native.folding
        out = self._flat[part.offset // item : (part.offset + part.size) // item]
        fold(self.call.reduce_op, self._shm.rows(part.phase, part.place, out), out)
        native.folded()

    def _check(self) -> None:
        group = self._shm.group
        group.check()
        missing = self._shm.native.missing
        try:
            group.check_alive(missing)
        except LinkError:
            group.check_after_loss()
            raise
        if missing and time.monotonic() >= self._deadline:
            raise CollectiveError(
                f"{self.call}, number {self.number} of this group: rank {group.rank} waited {self._timeout:g} s for "
                f"rank {missing[0]}, which did not take part; is it alive, and did it make the same call? "
                "(init_process_group's timeout sets the limit)"
            )

    def _disagreement(self) -> str:
        native, rank = self._shm.native, self._shm.group.rank
        theirs = "a much earlier collective"
        with contextlib.suppress(ValueError):
            if native.odd_header:
                call, number, _ = unpack(native.odd_header)
                theirs = str(call) if number == self.number & 0xFFFFFFFF else f"{call} as its number {number}"
        return (
            f"ranks disagree about collective number {self.number} of this group: rank {rank} called {self.call}, "
            f"rank {native.odd_rank} called {theirs}; every rank must call the same in the same order"
        )


def open_shm_allreduce(group: PeerGroup, timeout: float) -> ShmAllreduce | None:
    """Shared memory for a group whose members all run on this host. Every member calls this; all get it or none."""
    wire = group.wire
    if group.size < 2 or not isinstance(wire, MixedWire) or not wire.shares_host(group.members):
        return None
    deadline = time.monotonic() + timeout
    native = _create(group, deadline) if group.rank == 0 else _attach(group, deadline)
    return None if native is None else ShmAllreduce(native, group)


def _create(group: PeerGroup, deadline: float) -> _native.ShmAllreduce | None:
    """Rank 0's part: create the memory, pass it on, receive which ranks have it, send whether all have."""
    attached = {peer: _buffer(1) for peer in group.peers}
    answers = {peer: group.post(peer, buffer, tags.shm_setup(group.number, 1)) for peer, buffer in attached.items()}
    native = None
    try:
        file = _native.ShmAllreduce.make(group.size, SLOT)
    except RuntimeError:  # no memory or no descriptors left: use the wire
        _send_all(group, b"-", 0, deadline)
    else:
        try:
            native = _native.ShmAllreduce(file, group.size, SLOT, 0, SPIN)
            with FdOffer(file) as offer:
                _send_all(group, offer.credential, 0, deadline)
                offer.serve(len(answers), lambda: all(answer.done for answer in answers.values()), deadline)
        finally:
            os.close(file)
    for answer in answers.values():
        _wait(answer, deadline)
    if not all(buffer.item() for buffer in attached.values()):
        native = None
    _send_all(group, bytes([native is not None]), 2, deadline)
    return native


def _attach(group: PeerGroup, deadline: float) -> _native.ShmAllreduce | None:
    """Every other rank's part."""
    buffer, decision = _buffer(CREDENTIAL_BYTES), _buffer(1)
    credential = group.post(0, buffer, tags.shm_setup(group.number, 0))
    answer = group.post(0, decision, tags.shm_setup(group.number, 2))
    native = None
    if _wait(credential, deadline) == CREDENTIAL_BYTES:
        with contextlib.suppress(OSError, RuntimeError):
            file = receive_fd(bytes(buffer.numpy()), _FETCH)
            try:
                native = _native.ShmAllreduce(file, group.size, SLOT, group.rank, SPIN)
            finally:
                os.close(file)
    success = torch.tensor([native is not None], dtype=torch.uint8)
    _wait(group.send(0, success, tags.shm_setup(group.number, 1)), deadline)
    _wait(answer, deadline)
    return native if decision.item() else None


def _send_all(group: PeerGroup, message: bytes, step: int, deadline: float) -> None:
    buffer = torch.frombuffer(bytearray(message), dtype=torch.uint8)
    for transfer in [group.send(peer, buffer, tags.shm_setup(group.number, step)) for peer in group.peers]:
        _wait(transfer, deadline)


def _wait(transfer: Transfer, deadline: float) -> int:
    try:
        return transfer.wait(max(0.0, deadline - time.monotonic())).size
    except TimeoutError as error:
        raise LinkError(f"rank {transfer.peer} on this host does not answer") from error


def _buffer(nbytes: int) -> Tensor:
    return torch.zeros(nbytes, dtype=torch.uint8)


def _tensor_at(address: int, like: Tensor) -> Tensor:
    return torch.frombuffer((ctypes.c_uint8 * like.nbytes).from_address(address), dtype=like.dtype)
