"""Lockstep: runs one exchange of all ranks in one process, operation by operation, with exact results.

Every rank's exchange is the shipped generator. At each turn all of them yield the same kind of operation; its result is
copied into every rank's buffer, as a lane that loses nothing would do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from gradwire.errors import IntegrityError
from gradwire.transport.lanes.base import AllGather, AllReduce, AllToAll, Broadcast, Op


class Movement(NamedTuple):
    """One operation as the network sees it: bytes that each rank sends to each other rank."""

    kind: str
    nbytes: int


def run_lockstep(exchanges: Sequence[Iterator[Op]], *, one_restores: bool = False) -> list[Movement]:
    """Run the ranks' exchanges to their end, rank 0's first; what each operation moved, in order.

    `one_restores`: after the last operation only rank 0 continues, where the others would just restore the same bytes.
    """
    moved: list[Movement] = []
    while True:
        first = next(exchanges[0], None)
        if first is None and one_restores:
            return moved
        ops = [op for op in (first, *(next(other, None) for other in exchanges[1:])) if op is not None]
        if not ops:
            return moved
        if len(ops) != len(exchanges) or len({type(op) for op in ops}) != 1:
            kinds = ", ".join(sorted({type(op).__name__ for op in ops}))
            raise IntegrityError(
                f"simulate: ranks yielded different operations: {len(ops)} of {len(exchanges)} yielded {kinds}"
            )
        moved.append(_perform(ops))


def _perform(ops: Sequence[Op]) -> Movement:
    world = len(ops)
    first = ops[0]
    if isinstance(first, AllGather):
        for receiver in ops:
            rows = receiver.receive.view(world, -1)  # type: ignore[union-attr]
            for rank, sender in enumerate(ops):
                rows[rank].copy_(sender.send.reshape(-1))  # type: ignore[union-attr]
    elif isinstance(first, AllToAll):
        # All parts are read before any is written: a rank may receive into what it sent.
        parts = [op.send.reshape(world, -1).clone() for op in ops]  # type: ignore[union-attr]
        for rank, receiver in enumerate(ops):
            receiver.receive.view(world, -1).copy_(torch.stack([part[rank] for part in parts]))  # type: ignore[union-attr]
    elif isinstance(first, Broadcast):
        for receiver in ops[1:]:
            receiver.tensor.copy_(first.tensor)  # type: ignore[union-attr]
    else:
        tensors = [op.tensor for op in ops]  # type: ignore[union-attr]
        stacked = torch.stack(tensors)
        result = stacked.amax(0) if first.maximum else stacked.sum(0)
        for tensor in tensors:
            tensor.copy_(result)
    each = first.wire_bytes(world) // max(world - 1, 1)
    return Movement("ring" if isinstance(first, AllReduce) else "direct", each)
