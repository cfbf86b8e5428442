"""Wires: opens the wire of a job's ranks through torch's store.

Ranks that share a host and a network namespace talk through shared memory, others through LTP; GRADWIRE_WIRE names
another choice (see transport/mixed.py).
"""

from __future__ import annotations

from typing import Final

from torch._C._distributed_c10d import Store

from gradwire.errors import ConfigError
from gradwire.transport import mixed
from gradwire.transport.notes import Notes
from gradwire.transport.rendezvous import rendezvous
from gradwire.transport.secret import job_secret
from gradwire.transport.wire import Wire

VARIABLE: Final = mixed.WIRE_VARIABLE


def open_wire(store: Store, rank: int, size: int, timeout: float) -> Wire:
    """A wire connected to every other rank. Every rank calls this; LinkError on all of them or on none."""
    notes = Notes.open(store, "wire", rank, size, timeout)
    kind = _agree(notes, mixed.wire_kind())
    secret = job_secret(notes)
    return rendezvous(notes, lambda host, port: mixed.open_wire(rank, secret, host, port, kind=kind))


def _agree(notes: Notes, kind: str) -> str:
    """What all ranks asked for."""
    kinds = notes.gather("wire", kind, str)
    odd = next((rank for rank, other in enumerate(kinds) if other != kinds[0]), None)
    if odd is not None:
        raise ConfigError(f"{VARIABLE}: {kinds[0]} on rank 0 but {kinds[odd]} on rank {odd}; set one for all")
    return kind
