"""Collectives that move data and change none of it: gather, scatter, all-gather, all-to-all, broadcast, barrier.

Inputs may lie in the memory of the outputs: what is still to be read is out of the way before anything arrives there.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gradwire.backend.op_transfers import OpTransfers, Steps, arrivals
from gradwire.backend.reduce import DIRECT, ShareLayout


def all_gather(flight: OpTransfers, own: Tensor, outputs: Sequence[Tensor]) -> Steps:
    """outputs[r] becomes rank r's tensor."""
    circle = flight.circle
    mine = outputs[circle.rank].copy_(own)
    yield from flight.exchange(dict.fromkeys(circle.peers, mine), {peer: outputs[peer] for peer in circle.peers})


def gather(flight: OpTransfers, own: Tensor, outputs: Sequence[Tensor], root: int) -> Steps:
    """At `root`, outputs[r] becomes rank r's tensor."""
    circle = flight.circle
    if circle.rank != root:
        yield from flight.exchange({root: own}, {})
        return
    outputs[root].copy_(own)
    yield from flight.exchange({}, {peer: outputs[peer] for peer in circle.peers})


def scatter(flight: OpTransfers, inputs: Sequence[Tensor], output: Tensor, root: int) -> Steps:
    """`output` becomes the root's inputs[this rank]."""
    circle = flight.circle
    if circle.rank != root:
        yield from flight.exchange({}, {root: output})
        return
    yield from flight.exchange({peer: inputs[peer] for peer in circle.peers}, {})
    output.copy_(inputs[root])


def all_to_all(flight: OpTransfers, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Steps:
    """outputs[r] becomes rank r's inputs[this rank]."""
    circle = flight.circle
    inputs = _apart(inputs, outputs)
    yield from flight.exchange(
        {peer: inputs[peer] for peer in circle.peers}, {peer: outputs[peer] for peer in circle.peers}
    )
    outputs[circle.rank].copy_(inputs[circle.rank])


def broadcast(flight: OpTransfers, flat: Tensor, root: int) -> Steps:
    """`flat` becomes the root's, straight from the root when small, relayed by all receivers when large."""
    circle = flight.circle
    if flat.nbytes > DIRECT and circle.size > 2:
        return _relayed(flight, flat, root)
    if circle.rank == root:
        return flight.exchange(dict.fromkeys(circle.peers, flat), {})
    return flight.exchange({}, {root: flat})


def barrier(flight: OpTransfers, nothing: Tensor) -> Steps:
    """Every rank hears from every other."""
    peers = flight.circle.peers
    return flight.exchange(dict.fromkeys(peers, nothing), dict.fromkeys(peers, nothing))


def _apart(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> Sequence[Tensor]:
    """The sources, copied where they lie between the first and the last byte of the targets."""
    spans = [(target.data_ptr(), target.data_ptr() + target.nbytes) for target in targets if target.nbytes]
    begin, end = min((span[0] for span in spans), default=0), max((span[1] for span in spans), default=0)
    return [one.clone() if one.data_ptr() < end and begin < one.data_ptr() + one.nbytes else one for one in sources]


def _relayed(flight: OpTransfers, flat: Tensor, root: int) -> Steps:
    """Each receiver gets one share from the root and passes its chunks on: the root sends the tensor once, not W - 1
    times."""
    circle = flight.circle
    receivers = [rank for rank in range(circle.size) if rank != root]
    cut = ShareLayout(flat.numel(), flat.element_size(), len(receivers))
    share = {rank: cut.share(flat, index) for index, rank in enumerate(receivers)}
    if circle.rank == root:
        flight.open(circle.peers, nbytes=flat.nbytes)
        leaving = [flight.send(rank, share[rank][span], 1 + 2 * chunk)
                   for chunk in range(cut.most_chunks)
                   for rank in receivers if (span := cut.span(share[rank], chunk)) is not None]  # fmt: skip
        yield from arrivals(leaving)
        return
    ((opening, box),) = flight.expect((root,)).values()
    others = [peer for peer in circle.peers if peer != root]
    own = [(chunk, span, flight.post(root, share[circle.rank][span], 1 + 2 * chunk))
           for chunk, span in cut.chunks(share[circle.rank])]  # fmt: skip
    waiting = [flight.post(peer, share[peer][span], 2 + 2 * chunk)
               for peer in others for chunk, span in cut.chunks(share[peer])]  # fmt: skip
    flight.read(root, box, (yield opening), flat.nbytes)
    for chunk, span, arriving in own:
        yield arriving
        waiting += [flight.send(peer, share[circle.rank][span], 2 + 2 * chunk) for peer in others]
    yield from arrivals(waiting)
