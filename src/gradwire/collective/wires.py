"""Wires: opens the wire of a job's ranks through torch's store.

Ranks that share a host and a network namespace talk through shared memory, others through LTP; GRADWIRE_WIRE names
another choice (see transport/mixed.py).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from torch._C._distributed_c10d import Store

from gradwire.errors import ConfigError
from gradwire.transport import mixed
from gradwire.transport.address import own_address
from gradwire.transport.native import NativeWire
from gradwire.transport.notes import Notes
from gradwire.transport.rendezvous import rendezvous
from gradwire.transport.secret import job_secret
from gradwire.transport.wire import Wire

VARIABLE: Final = mixed.WIRE_VARIABLE
_log = logging.getLogger("gradwire")


def open_wire(store: Store, rank: int, size: int, timeout: float) -> Wire:
    """A wire connected to every other rank. Every rank calls this; LinkError on all of them or on none."""
    notes = Notes.open(store, "wire", rank, size, timeout)
    kind = _agree(notes, mixed.wire_kind())
    secret = job_secret(notes)
    wire = rendezvous(notes, lambda host, port: mixed.open_wire(rank, secret, host, port, kind=kind))
    _log.info(
        "rank %d of %d: address %s, port %d; %s (GRADWIRE_IFNAME, GRADWIRE_PORTS and %s choose others)",
        rank, size, own_address(), wire.port, _routes(wire, [peer for peer in range(size) if peer != rank]), VARIABLE,
    )  # fmt: skip
    return wire


def _routes(wire: mixed.MixedWire | NativeWire, peers: Sequence[int]) -> str:
    """How the others are reached, in words."""
    if not isinstance(wire, mixed.MixedWire):
        return f"{wire.protocol} to {_named(peers)}"
    near = [peer for peer in peers if wire.beside([peer])]
    far = [peer for peer in peers if peer not in near]
    return ", ".join(f"{way} to {_named(those)}" for way, those in (("shared memory", near), ("LTP", far)) if those)


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))}" if ranks else "nobody"


def _agree(notes: Notes, kind: str) -> str:
    """What all ranks asked for."""
    kinds = notes.gather("wire", kind, str)
    odd = next((rank for rank, other in enumerate(kinds) if other != kinds[0]), None)
    if odd is not None:
        raise ConfigError(f"{VARIABLE}: {kinds[0]} on rank 0 but {kinds[odd]} on rank {odd}; set one for all")
    return kind
