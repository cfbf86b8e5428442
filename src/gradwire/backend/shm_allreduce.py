"""Board: sums between ranks of one host go through memory that all of them see, added up by native code.

In: a call and flat memory. Out: an operation for the engine, with the errors of one that goes over the wire: ranks
that called something else, that did not come, that are lost. What native code cannot add (halves, complex numbers,
other operators than a sum) is folded by torch, in the slots where it lies.
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
from gradwire._native import BoardKind, BoardStatus
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

# Bytes that a rank puts in at once. Between 64 KB and 1 MB the best differs with the number of ranks.
# Measured: docs/results/backend.md, cross-over.
SLOT: Final = 256 << 10
# From here on a sum of more than two ranks goes in shares: below, both ways take the same time; at 1 MB shares win.
SHARDED: Final = 256 << 10
# How long a rank looks before it sleeps, giving way to others: longer than a rank on another core takes to put in a
# small tensor, shorter than two changes of the running process.
SPIN: Final = 50e-6
_HEADER: Final = 56
_FETCH: Final = 10.0
_KINDS: Final = {
    torch.float32: BoardKind.float32, torch.float64: BoardKind.float64, torch.int8: BoardKind.int8,
    torch.uint8: BoardKind.int8, torch.int16: BoardKind.int16, torch.int32: BoardKind.int32,
    torch.int64: BoardKind.int64,
}  # fmt: skip


class ShmAllreduce:
    """One circle's board. Operations take turns in the order of their numbers."""

    def __init__(self, native: _native.Board, circle: PeerGroup) -> None:
        self.native = native
        self.circle = circle
        self.asked = self.done = 0

    def announce(self, call: Call, number: int) -> None:
        """Tell those who wait on the board that this rank's call `number` goes over the wire."""
        self.native.announce(number, self.asked, call.pack(number, 0)[:_HEADER])

    def rows(self, phase: int, place: int, like: Tensor) -> list[Tensor]:
        """What every rank has put into its slot at `place`, seen as flat tensors like `like`."""
        return [_tensor_at(self.native.slot(phase, rank) + place, like) for rank in range(self.circle.size)]


class ShmOperation:
    """One sum on the board. What `engine.Operation` is for the wire."""

    def __init__(
        self, board: ShmAllreduce, call: Call, number: int, flat: Tensor, work: CollectiveWork, timeout: float,
        settle: Callable[[], None],
    ) -> None:  # fmt: skip
        self.call, self.number, self.work = call, number, work
        self._board, self._flat = board, flat
        self._timeout = timeout
        self._settle = settle
        self._turn = board.asked
        board.asked += 1
        self._deadline = 0.0
        self._begun = False
        self.started = self.finished = False

    def start(self) -> None:
        """Put in what can be without waiting."""
        self.started = True
        self._deadline = time.monotonic() + self._timeout
        self.advance()

    def advance(self) -> bool:
        """Go on as far as possible without waiting; tells whether it is done."""
        if self._my_turn():
            self._step(0.0)
        return self.finished

    def block(self, seconds: float) -> None:
        """Wait up to `seconds`; CollectiveError at the operation's own deadline."""
        if not self._my_turn():
            raise AssertionError("an operation waits for its elders")
        left = self._deadline - time.monotonic()
        self._step(max(0.0, min(seconds, left)))
        if not self.finished:
            self._listen()

    def abandon(self) -> None:
        """It failed. Nobody else touches its memory."""

    def _my_turn(self) -> bool:
        if self._turn != self._board.done:
            return False
        if not self._begun:
            self._begun = True
            self._begin()
        return True

    def _begin(self) -> None:
        flat, how, size = self._flat, self.call.how, self._board.circle.size
        kind = _KINDS.get(flat.dtype, BoardKind.caller) if how == "sum" else BoardKind.caller
        header = self.call.pack(self.number, flat.nbytes)[:_HEADER]
        self._board.native.begin(
            self.number, header, flat.data_ptr(), flat.nbytes, flat.element_size(), kind,
            size > 2 and flat.nbytes >= SHARDED,
        )  # fmt: skip

    def _step(self, seconds: float) -> None:
        native = self._board.native
        status = native.step(seconds)
        while status == BoardStatus.fold:
            self._fold()
            status = native.step(seconds)
        if status == BoardStatus.differs:
            raise CollectiveError(self._disagreement())
        if status == BoardStatus.done:
            self._settle()
            self._board.done += 1
            self.finished = True

    def _fold(self) -> None:
        native, item = self._board.native, self._flat.element_size()
        part = native.folding
        out = self._flat[part.offset // item : (part.offset + part.size) // item]
        fold(self.call.how, self._board.rows(part.phase, part.place, out), out)
        native.folded()

    def _listen(self) -> None:
        circle = self._board.circle
        circle.check()
        missing = self._board.native.missing
        try:
            circle.check_present(missing)
        except LinkError:
            circle.check_patiently()
            raise
        if missing and time.monotonic() >= self._deadline:
            raise CollectiveError(
                f"{self.call}, number {self.number} of this group: rank {circle.rank} waited {self._timeout:g} s for "
                f"rank {missing[0]}, which did not take part; is it alive, and did it make the same call? "
                "(init_process_group's timeout sets the limit)"
            )

    def _disagreement(self) -> str:
        native, rank = self._board.native, self._board.circle.rank
        theirs = "something else long ago"
        with contextlib.suppress(ValueError):
            if native.odd_header:
                call, number, _ = unpack(native.odd_header)
                theirs = str(call) if number == self.number & 0xFFFFFFFF else f"{call} as its number {number}"
        return (
            f"ranks disagree about collective number {self.number} of this group: rank {rank} called {self.call}, "
            f"rank {native.odd_rank} called {theirs}; every rank must call the same in the same order"
        )


def open_board(circle: PeerGroup, timeout: float) -> ShmAllreduce | None:
    """The board of a circle whose members all run on this host. Every member calls this; all get one or none does."""
    wire = circle.wire
    if circle.size < 2 or not isinstance(wire, MixedWire) or not wire.shares_host(circle.members):
        return None
    deadline = time.monotonic() + timeout
    native = _hand_out(circle, deadline) if circle.rank == 0 else _take(circle, deadline)
    return None if native is None else ShmAllreduce(native, circle)


def _hand_out(circle: PeerGroup, deadline: float) -> _native.Board | None:
    """The first rank's part: make the memory, hand it over, hear who has it, tell whether all have."""
    heard = {peer: _room(1) for peer in circle.peers}
    answers = {peer: circle.post(peer, box, tags.board(circle.group, 1)) for peer, box in heard.items()}
    native = None
    try:
        file = _native.Board.make(circle.size, SLOT)
    except RuntimeError:  # no memory, no descriptors: the wire will do
        _tell(circle, b"-", 0, deadline)
    else:
        try:
            native = _native.Board(file, circle.size, SLOT, 0, SPIN)
            with FdOffer(file) as offer:
                _tell(circle, offer.credential, 0, deadline)
                offer.serve(len(answers), lambda: all(answer.done for answer in answers.values()), deadline)
        finally:
            os.close(file)
    for answer in answers.values():
        _wait(answer, deadline)
    if not all(box.item() for box in heard.values()):
        native = None
    _tell(circle, bytes([native is not None]), 2, deadline)
    return native


def _take(circle: PeerGroup, deadline: float) -> _native.Board | None:
    """Every other rank's part."""
    box, verdict = _room(CREDENTIAL_BYTES), _room(1)
    note = circle.post(0, box, tags.board(circle.group, 0))
    answer = circle.post(0, verdict, tags.board(circle.group, 2))
    native = None
    if _wait(note, deadline) == CREDENTIAL_BYTES:
        with contextlib.suppress(OSError, RuntimeError):
            file = receive_fd(bytes(box.numpy()), _FETCH)
            try:
                native = _native.Board(file, circle.size, SLOT, circle.rank, SPIN)
            finally:
                os.close(file)
    _wait(circle.send(0, torch.tensor([native is not None], dtype=torch.uint8), tags.board(circle.group, 1)), deadline)
    _wait(answer, deadline)
    return native if verdict.item() else None


def _tell(circle: PeerGroup, message: bytes, step: int, deadline: float) -> None:
    box = torch.frombuffer(bytearray(message), dtype=torch.uint8)
    for transfer in [circle.send(peer, box, tags.board(circle.group, step)) for peer in circle.peers]:
        _wait(transfer, deadline)


def _wait(transfer: Transfer, deadline: float) -> int:
    try:
        return transfer.wait(max(0.0, deadline - time.monotonic())).size
    except TimeoutError as error:
        raise LinkError(f"rank {transfer.peer} on this host does not answer") from error


def _room(nbytes: int) -> Tensor:
    return torch.zeros(nbytes, dtype=torch.uint8)


def _tensor_at(address: int, like: Tensor) -> Tensor:
    return torch.frombuffer((ctypes.c_uint8 * like.nbytes).from_address(address), dtype=like.dtype)
