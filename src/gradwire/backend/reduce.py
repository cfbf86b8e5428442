"""Reduce: all-reduce, reduce and reduce-scatter.

    direct    every rank sends its tensor to every other and sums for itself: one hop, for small tensors
    sharded   rank r owns share r: shares go to their owners chunk by chunk, owners sum and send the result while the
              next chunks still arrive: 2 (W - 1) / W of the tensor per link, whatever W

Both add in rank order, so both give the same bits, and the same on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from torch import Tensor

from gradwire.backend.buffers import INLINE
from gradwire.backend.op_transfers import OpTransfers, Steps, arrivals
from gradwire.backend.reduce_ops import fold
from gradwire.backend.tags import PARTS_LIMIT

# Tensors up to this many bytes go directly. Measured: docs/results/backend.md, cross-over.
DIRECT: Final = 64 << 10
# Bytes of a pipelined chunk: large enough that a wire's cost per transfer is small beside it.
CHUNK: Final = 1 << 20
_CHUNKS_LIMIT: Final = PARTS_LIMIT // 2 - 2


def all_reduce(op: OpTransfers, flat: Tensor) -> Steps:
    """`flat` becomes the result on every rank."""
    if flat.nbytes <= INLINE or op.group.size == 1:
        return _inline(op, flat)
    if flat.nbytes <= DIRECT:
        return _direct(op, flat)
    return _sharded(op, flat, range(op.group.size))


def reduce(op: OpTransfers, flat: Tensor, root: int) -> Steps:
    """`flat` becomes the result at `root`; the others keep theirs."""
    if flat.nbytes > DIRECT and op.group.size > 1:
        return _sharded(op, flat, (root,))
    return _direct_to(op, flat, root)


def reduce_scatter(op: OpTransfers, inputs: Sequence[Tensor], output: Tensor) -> Steps:
    """`output` becomes the result over all ranks' inputs[this rank]."""
    group = op.group
    received = dict(zip(group.peers, op.scratch_rows(group.size - 1, output), strict=True))
    yield from op.exchange({peer: inputs[peer] for peer in group.peers}, received)
    fold(
        op.call.reduce_op,
        [inputs[group.rank] if rank == group.rank else received[rank] for rank in _ranks(op)],
        output,
    )


def _inline(op: OpTransfers, flat: Tensor) -> Steps:
    """Direct, for tensors that fit into the opening messages: summed in their buffers."""
    group = op.group
    openings = op.post_openings(group.peers)
    op.send_openings(group.peers, flat)
    rows = {group.rank: flat}
    for peer, (opening, buffer) in openings.items():
        op.check_opening(peer, buffer, (yield opening), flat.nbytes)
        rows[peer] = buffer.view(flat)
    fold(op.call.reduce_op, [rows[rank] for rank in _ranks(op)], flat)


def _direct(op: OpTransfers, flat: Tensor) -> Steps:
    group = op.group
    rows = op.scratch_rows(group.size, flat)
    own = rows[group.rank]
    own.copy_(flat)
    yield from op.exchange(dict.fromkeys(group.peers, own), {peer: rows[peer] for peer in group.peers})
    fold(op.call.reduce_op, list(rows), flat)


def _direct_to(op: OpTransfers, flat: Tensor, root: int) -> Steps:
    group = op.group
    if group.rank != root:
        yield from op.exchange({root: flat}, {})
        return
    scratch = op.scratch_rows(group.size, flat)
    yield from op.exchange({}, {peer: scratch[peer] for peer in group.peers})
    scratch[root].copy_(flat)
    fold(op.call.reduce_op, list(scratch), flat)


def _sharded(op: OpTransfers, flat: Tensor, targets: Sequence[int]) -> Steps:
    """1. send openings; 2. post all receives; 3. send shares to their owners; 4. chunk by chunk: sum, send the result;
    5. wait for the others' results and for this rank's sends."""
    group = op.group
    cut = ShareLayout(flat.numel(), flat.element_size(), group.size)
    openings = op.post_openings(group.peers)  # 1
    op.send_openings(group.peers, nbytes=flat.nbytes)
    own = cut.share(flat, group.rank)
    shares = {peer: cut.share(flat, peer) for peer in group.peers}
    rows = op.scratch_rows(group.size - 1, own)
    row = {peer: rows[index] for index, peer in enumerate(group.peers)}
    inbound = [
        (chunk, [op.post(peer, row[peer][span], 1 + 2 * chunk) for peer in group.peers])
        for chunk, span in cut.chunks(own)
    ]  # 2
    results = [
        op.post(peer, share[span], 2 + 2 * chunk)
        for peer, share in shares.items()
        if group.rank in targets
        for chunk, span in cut.chunks(share)
    ]
    outbound = [
        op.send(peer, share[span], 1 + 2 * chunk)
        for chunk in range(cut.most_chunks)
        for peer, share in shares.items()
        if (span := cut.span(share, chunk)) is not None
    ]  # 3
    for peer, (opening, buffer) in openings.items():
        op.check_opening(peer, buffer, (yield opening), flat.nbytes)
    total = own if group.rank in targets else own.clone()
    for chunk, arriving in inbound:  # 4
        yield from arrivals(arriving)
        span = cut.at(own, chunk)
        mine = total[span]
        fold(op.call.reduce_op, [mine if rank == group.rank else row[rank][span] for rank in _ranks(op)], mine)
        outbound += [op.send(peer, mine, 2 + 2 * chunk) for peer in group.peers if peer in targets]
    yield from arrivals(results + outbound)  # 5


class ShareLayout:
    """How a tensor of `count` elements is cut into one share per rank and each share into chunks."""

    def __init__(self, count: int, itemsize: int, ranks: int) -> None:
        self._bounds = [count * rank // ranks for rank in range(ranks + 1)]
        largest = max(1, -(-count // ranks))
        self._step = max(1, CHUNK // itemsize, -(-largest // _CHUNKS_LIMIT))
        self.most_chunks = -(-largest // self._step)

    def share(self, flat: Tensor, rank: int) -> Tensor:
        return flat[self._bounds[rank] : self._bounds[rank + 1]]

    def at(self, share: Tensor, chunk: int) -> slice:
        return slice(chunk * self._step, min(share.numel(), (chunk + 1) * self._step))

    def span(self, share: Tensor, chunk: int) -> slice | None:
        """Where chunk `chunk` of a share lies; None when the share has fewer."""
        return self.at(share, chunk) if chunk * self._step < share.numel() else None

    def chunks(self, share: Tensor) -> list[tuple[int, slice]]:
        return [(chunk, span) for chunk in range(self.most_chunks) if (span := self.span(share, chunk)) is not None]


def _ranks(op: OpTransfers) -> range:
    return range(op.group.size)
