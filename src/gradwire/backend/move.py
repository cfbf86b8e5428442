"""Move: collectives without arithmetic: gather, scatter, all-gather, all-to-all, broadcast, barrier.

Inputs may share memory with outputs: what is still to be read is copied before anything arrives there.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gradwire.backend.op_transfers import OpTransfers, Steps, arrivals
from gradwire.backend.reduce import DIRECT, ShareLayout


def all_gather(op: OpTransfers, own: Tensor, outputs: Sequence[Tensor]) -> Steps:
    """outputs[r] becomes rank r's tensor."""
    group = op.group
    mine = outputs[group.rank].copy_(own)
    yield from op.exchange(dict.fromkeys(group.peers, mine), {peer: outputs[peer] for peer in group.peers})


def gather(op: OpTransfers, own: Tensor, outputs: Sequence[Tensor], root: int) -> Steps:
    """At `root`, outputs[r] becomes rank r's tensor."""
    group = op.group
    if group.rank != root:
        yield from op.exchange({root: own}, {})
        return
    outputs[root].copy_(own)
    yield from op.exchange({}, {peer: outputs[peer] for peer in group.peers})


def scatter(op: OpTransfers, inputs: Sequence[Tensor], output: Tensor, root: int) -> Steps:
    """`output` becomes the root's inputs[this rank]."""
    group = op.group
    if group.rank != root:
        yield from op.exchange({}, {root: output})
        return
    yield from op.exchange({peer: inputs[peer] for peer in group.peers}, {})
    output.copy_(inputs[root])


def all_to_all(op: OpTransfers, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Steps:
    """outputs[r] becomes rank r's inputs[this rank]."""
    group = op.group
    inputs = _without_overlap(inputs, outputs)
    yield from op.exchange({peer: inputs[peer] for peer in group.peers}, {peer: outputs[peer] for peer in group.peers})
    outputs[group.rank].copy_(inputs[group.rank])


def broadcast(op: OpTransfers, flat: Tensor, root: int) -> Steps:
    """`flat` becomes the root's: sent by the root when small, relayed by all receivers when large."""
    group = op.group
    if flat.nbytes > DIRECT and group.size > 2:
        return _relayed(op, flat, root)
    if group.rank == root:
        return op.exchange(dict.fromkeys(group.peers, flat), {})
    return op.exchange({}, {root: flat})


def barrier(op: OpTransfers, nothing: Tensor) -> Steps:
    """Every rank receives a message from every other."""
    peers = op.group.peers
    return op.exchange(dict.fromkeys(peers, nothing), dict.fromkeys(peers, nothing))


def _without_overlap(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> Sequence[Tensor]:
    """The sources, copied where they overlap the memory of the targets."""
    spans = [(target.data_ptr(), target.data_ptr() + target.nbytes) for target in targets if target.nbytes]
    begin, end = min((span[0] for span in spans), default=0), max((span[1] for span in spans), default=0)
    return [one.clone() if one.data_ptr() < end and begin < one.data_ptr() + one.nbytes else one for one in sources]


def _relayed(op: OpTransfers, flat: Tensor, root: int) -> Steps:
    """Each receiver gets one share from the root and passes its chunks on: the root sends the tensor once, not W - 1
    times."""
    group = op.group
    receivers = [rank for rank in range(group.size) if rank != root]
    cut = ShareLayout(flat.numel(), flat.element_size(), len(receivers))
    share = {rank: cut.share(flat, index) for index, rank in enumerate(receivers)}
    if group.rank == root:
        op.send_openings(group.peers, nbytes=flat.nbytes)
        outbound = [op.send(rank, share[rank][span], 1 + 2 * chunk)
                   for chunk in range(cut.most_chunks)
                   for rank in receivers if (span := cut.span(share[rank], chunk)) is not None]  # fmt: skip
        yield from arrivals(outbound)
        return
    ((opening, buffer),) = op.post_openings((root,)).values()
    others = [peer for peer in group.peers if peer != root]
    own = [(chunk, span, op.post(root, share[group.rank][span], 1 + 2 * chunk))
           for chunk, span in cut.chunks(share[group.rank])]  # fmt: skip
    pending = [op.post(peer, share[peer][span], 2 + 2 * chunk)
               for peer in others for chunk, span in cut.chunks(share[peer])]  # fmt: skip
    op.check_opening(root, buffer, (yield opening), flat.nbytes)
    for chunk, span, arriving in own:
        yield arriving
        pending += [op.send(peer, share[group.rank][span], 2 + 2 * chunk) for peer in others]
    yield from arrivals(pending)
