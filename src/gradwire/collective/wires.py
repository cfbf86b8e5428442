"""Wires: opens the wire of a job's ranks through torch's store."""

from __future__ import annotations

from torch._C._distributed_c10d import Store

from gradwire.transport.ltp import Endpoint, LtpConfig
from gradwire.transport.notes import Notes
from gradwire.transport.rendezvous import rendezvous
from gradwire.transport.secret import job_secret
from gradwire.transport.wire import Wire


def open_wire(store: Store, rank: int, size: int, timeout: float) -> Wire:
    """A wire connected to every other rank. Every rank calls this; LinkError on all of them or on none."""
    notes = Notes.open(store, "wire", rank, size, timeout)
    secret = job_secret(notes)
    return rendezvous(notes, lambda host, port: Endpoint(rank, secret, LtpConfig(host=host, port=port)))
