"""Wires: opens the wire of a job's ranks through torch's store.

Ranks that share a host and a network namespace talk through shared memory; others through TCP or LTP, as GRADWIRE_WIRE
says: auto (the default), tcp, ltp, or shm.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Final

from torch._C._distributed_c10d import Store

from gradwire.errors import ConfigError
from gradwire.transport.ltp import Endpoint, LtpConfig
from gradwire.transport.notes import Notes
from gradwire.transport.rendezvous import rendezvous
from gradwire.transport.secret import job_secret
from gradwire.transport.shm import ShmConfig, ShmEndpoint, host_identity
from gradwire.transport.tcp import TcpConfig, TcpEndpoint
from gradwire.transport.wire import Wire

VARIABLE: Final = "GRADWIRE_WIRE"
KINDS: Final = ("auto", "tcp", "ltp", "shm")


def open_wire(store: Store, rank: int, size: int, timeout: float) -> Wire:
    """A wire connected to every other rank. Every rank calls this; LinkError on all of them or on none."""
    notes = Notes.open(store, "wire", rank, size, timeout)
    kind = _agree(notes, asked(os.environ))
    secret = job_secret(notes)
    make: dict[str, Callable[[str, int], Wire]] = {
        "ltp": lambda host, port: Endpoint(rank, secret, LtpConfig(host=host, port=port, connect_timeout=timeout)),
        "tcp": lambda host, port: TcpEndpoint(rank, secret, TcpConfig(host=host, port=port, connect_timeout=timeout)),
        "shm": lambda _, port: ShmEndpoint(rank, secret, ShmConfig(port=port, connect_timeout=timeout)),
    }
    return rendezvous(notes, make[kind])


def asked(environment: Mapping[str, str]) -> str:
    """The kind of wire the user asks for."""
    kind = environment.get(VARIABLE, "auto")
    if kind not in KINDS:
        raise ConfigError(f"{VARIABLE}={kind}: no such wire; write {', '.join(KINDS)}")
    return kind


def _agree(notes: Notes, kind: str) -> str:
    """What all ranks asked for; for `auto`, shared memory where all of them can reach it, else TCP."""
    kinds = notes.gather("wire", kind, str)
    odd = next((rank for rank, other in enumerate(kinds) if other != kinds[0]), None)
    if odd is not None:
        raise ConfigError(f"{VARIABLE}: {kinds[0]} on rank 0 but {kinds[odd]} on rank {odd}; set one for all")
    if kind != "auto":
        return kind
    return "shm" if len(set(notes.gather("host", host_identity(), str))) == 1 else "tcp"
