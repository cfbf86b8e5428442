"""Wires: opens the wire of a job's ranks through torch's store."""

from __future__ import annotations

import secrets

from torch._C._distributed_c10d import Store

from gradwire.transport.ltp import Endpoint, LtpConfig
from gradwire.transport.wire import Wire


def open_wire(store: Store, rank: int, size: int, timeout: float) -> Wire:
    """A wire connected to every other rank. Every rank calls this."""
    if rank == 0:
        store.set("gradwire/secret", secrets.token_hex(32))
    secret = bytes.fromhex(store.get("gradwire/secret").decode())
    wire = Endpoint(rank, secret, LtpConfig(connect_timeout=timeout))
    store.set(f"gradwire/port/{rank}", str(wire.port))
    peers = {peer: ("127.0.0.1", int(store.get(f"gradwire/port/{peer}"))) for peer in range(size) if peer != rank}
    wire.connect(peers)
    return wire
