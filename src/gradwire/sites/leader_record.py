"""LeaderRecord: what a rank must know to take the place of another one in the trees between sites.

The leader of a site sends it to its followers before the first step; where sites have one rank each, rank 0 keeps it in
torch's store (`job_record`).
"""

from __future__ import annotations

import msgspec
import torch
import torch.distributed as dist

from gradwire.transport.bootstrap.secret import given_secret
from gradwire.transport.wires.ltp import Endpoint
from gradwire.tree.setup import TreeConnection, written_plan


class LeaderRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Kind of wire, addresses of all members, and the first plan.

    `secret` is one that the job drew. One that the user set is known to every rank and is never sent.
    """

    kind: str
    secret: str
    addresses: dict[int, tuple[str, int]]
    plan: str

    @classmethod
    def of(cls, connection: TreeConnection) -> LeaderRecord:
        wire, plan = connection.wire, connection.executor.member.plan
        kind = "ltp" if isinstance(wire, Endpoint) else "tcp"
        drawn = "" if given_secret() is not None else wire.secret.hex()
        return cls(kind=kind, secret=drawn, addresses=dict(wire.addresses), plan=written_plan(plan))


def broadcast_leader_record(own: LeaderRecord | None, group: dist.ProcessGroup) -> LeaderRecord:
    """The leader's record on every rank of its site; None on followers."""
    data = torch.frombuffer(bytearray(msgspec.json.encode(own)), dtype=torch.uint8)
    size = torch.tensor([data.numel()])
    group.broadcast(size, 0).wait()
    data = data if own is not None else torch.empty(int(size), dtype=torch.uint8)
    group.broadcast(data, 0).wait()
    return msgspec.json.decode(bytes(data.numpy()), type=LeaderRecord)
