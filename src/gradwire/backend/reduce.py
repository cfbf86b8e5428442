"""All-reduce and its kin: the sum of all ranks' tensors, everywhere, at one rank, or in shares.

    direct    every rank sends its tensor to every other and adds up for itself: one hop, for small tensors
    sharded   rank r owns share r: shares go to their owners chunk by chunk, owners add up and pass the chunk on while
              the next ones still arrive: 2 (W - 1) / W of the tensor per link, whatever W

Both add in rank order, so both give the same bits, and the same on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from torch import Tensor

from gradwire.backend.buffers import INLINE
from gradwire.backend.op_transfers import OpTransfers, Steps, arrivals
from gradwire.backend.reduce_ops import fold
from gradwire.backend.tags import PARTS_MOST

# Tensors up to this many bytes go directly. Measured: docs/results/backend.md, cross-over.
DIRECT: Final = 64 << 10
# Bytes of a pipelined chunk: large enough that a wire's cost per transfer is small beside it.
CHUNK: Final = 1 << 20
_CHUNKS_MOST: Final = PARTS_MOST // 2 - 2


def all_reduce(flight: OpTransfers, flat: Tensor) -> Steps:
    """`flat` becomes the result on every rank."""
    if flat.nbytes <= INLINE or flight.circle.size == 1:
        return _inline(flight, flat)
    if flat.nbytes <= DIRECT:
        return _direct(flight, flat)
    return _sharded(flight, flat, range(flight.circle.size))


def reduce(flight: OpTransfers, flat: Tensor, root: int) -> Steps:
    """`flat` becomes the result at `root`; the others keep theirs."""
    if flat.nbytes > DIRECT and flight.circle.size > 1:
        return _sharded(flight, flat, (root,))
    return _direct_to(flight, flat, root)


def reduce_scatter(flight: OpTransfers, inputs: Sequence[Tensor], output: Tensor) -> Steps:
    """`output` becomes the result over all ranks' inputs[this rank]."""
    circle = flight.circle
    received = dict(zip(circle.peers, flight.rows(circle.size - 1, output), strict=True))
    yield from flight.exchange({peer: inputs[peer] for peer in circle.peers}, received)
    fold(
        flight.call.how,
        [inputs[circle.rank] if rank == circle.rank else received[rank] for rank in _all(flight)],
        output,
    )


def _inline(flight: OpTransfers, flat: Tensor) -> Steps:
    """The direct way for what fits the opening messages: they are added up where they lie."""
    circle = flight.circle
    openings = flight.expect(circle.peers)
    flight.open(circle.peers, flat)
    rows = {circle.rank: flat}
    for peer, (opening, box) in openings.items():
        flight.read(peer, box, (yield opening), flat.nbytes)
        rows[peer] = box.view(flat)
    fold(flight.call.how, [rows[rank] for rank in _all(flight)], flat)


def _direct(flight: OpTransfers, flat: Tensor) -> Steps:
    circle = flight.circle
    rows = flight.rows(circle.size, flat)
    own = rows[circle.rank]
    own.copy_(flat)
    yield from flight.exchange(dict.fromkeys(circle.peers, own), {peer: rows[peer] for peer in circle.peers})
    fold(flight.call.how, list(rows), flat)


def _direct_to(flight: OpTransfers, flat: Tensor, root: int) -> Steps:
    circle = flight.circle
    if circle.rank != root:
        yield from flight.exchange({root: flat}, {})
        return
    scratch = flight.rows(circle.size, flat)
    yield from flight.exchange({}, {peer: scratch[peer] for peer in circle.peers})
    scratch[root].copy_(flat)
    fold(flight.call.how, list(scratch), flat)


def _sharded(flight: OpTransfers, flat: Tensor, targets: Sequence[int]) -> Steps:
    """1. open; 2. post the room for all that comes; 3. send shares to their owners; 4. chunk by chunk: add up, pass on;
    5. wait for the others' results and for our own sends."""
    circle = flight.circle
    cut = ShareLayout(flat.numel(), flat.element_size(), circle.size)
    openings = flight.expect(circle.peers)  # 1
    flight.open(circle.peers, nbytes=flat.nbytes)
    own = cut.share(flat, circle.rank)
    shares = {peer: cut.share(flat, peer) for peer in circle.peers}
    rows = flight.rows(circle.size - 1, own)
    row = {peer: rows[index] for index, peer in enumerate(circle.peers)}
    coming = [
        (chunk, [flight.post(peer, row[peer][span], 1 + 2 * chunk) for peer in circle.peers])
        for chunk, span in cut.chunks(own)
    ]  # 2
    results = [
        flight.post(peer, share[span], 2 + 2 * chunk)
        for peer, share in shares.items()
        if circle.rank in targets
        for chunk, span in cut.chunks(share)
    ]
    leaving = [
        flight.send(peer, share[span], 1 + 2 * chunk)
        for chunk in range(cut.most_chunks)
        for peer, share in shares.items()
        if (span := cut.span(share, chunk)) is not None
    ]  # 3
    for peer, (opening, box) in openings.items():
        flight.read(peer, box, (yield opening), flat.nbytes)
    total = own if circle.rank in targets else own.clone()
    for chunk, arriving in coming:  # 4
        yield from arrivals(arriving)
        span = cut.at(own, chunk)
        mine = total[span]
        fold(flight.call.how, [mine if rank == circle.rank else row[rank][span] for rank in _all(flight)], mine)
        leaving += [flight.send(peer, mine, 2 + 2 * chunk) for peer in circle.peers if peer in targets]
    yield from arrivals(results + leaving)  # 5


class ShareLayout:
    """How a tensor of `count` elements is cut into one share per rank and each share into chunks."""

    def __init__(self, count: int, itemsize: int, ranks: int) -> None:
        self._bounds = [count * rank // ranks for rank in range(ranks + 1)]
        largest = max(1, -(-count // ranks))
        self._step = max(1, CHUNK // itemsize, -(-largest // _CHUNKS_MOST))
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


def _all(flight: OpTransfers) -> range:
    return range(flight.circle.size)
