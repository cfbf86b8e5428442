"""Wire choice: selects and opens the wire between a job's ranks, through torch's store.

Ranks on the same host and network namespace use shared memory. Others use TCP where every round trip is short: a loss
is repaired within one, and the kernel sends a byte for less processor time. Where one is long they use LTP, which
losses do not slow down. GRADWIRE_WIRE overrides the choice (transport/wires/mixed.py).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import Final

from torch._C._distributed_c10d import Store

from gradwire.errors import ConfigError, NoAnswerError
from gradwire.transport.bootstrap.address import own_address
from gradwire.transport.bootstrap.rendezvous import rendezvous
from gradwire.transport.bootstrap.secret import job_secret
from gradwire.transport.bootstrap.store_exchange import StoreExchange
from gradwire.transport.wires import mixed
from gradwire.transport.wires.base import Wire
from gradwire.transport.wires.native import NativeWire

VARIABLE: Final = mixed.WIRE_VARIABLE
# Seconds; round trips up to this are short: one building, one data centre, one city.
SHORT_TRIP: Final = 0.002
_log = logging.getLogger("gradwire")

Connected = mixed.MixedWire | NativeWire


def open_wire(store: Store, rank: int, size: int, timeout: float) -> Wire:
    """A wire connected to every other rank. Every rank calls this; LinkError on all of them or on none."""
    exchange = StoreExchange.open(store, "wire", rank, size, timeout)
    kind = _agree(exchange, mixed.wire_kind())
    secret = job_secret(exchange)
    if kind == "auto":
        wire = _choose(store, rank, size, timeout, secret)
    else:
        wire = rendezvous(exchange, lambda host, port: mixed.open_wire(rank, secret, host, port, kind=kind))
    _log.info(
        "rank %d of %d: address %s, port %d; %s (GRADWIRE_IFNAME, GRADWIRE_PORTS and %s choose others)",
        rank, size, own_address(), wire.port, _routes(wire, [peer for peer in range(size) if peer != rank]), VARIABLE,
    )  # fmt: skip
    return wire


def _choose(store: Store, rank: int, size: int, timeout: float, secret: bytes) -> Connected:
    """1. TCP, whose round trips the kernel measures; 2. kept if all are short; 3. else LTP, unless UDP is blocked."""

    def connect(far: str) -> tuple[StoreExchange, Connected]:
        exchange = StoreExchange.open(store, f"wire/{far}", rank, size, timeout)
        return exchange, rendezvous(exchange, lambda host, port: mixed.open_wire(rank, secret, host, port, far=far))

    try:
        exchange, wire = connect("tcp")  # 1
    except NoAnswerError:
        return connect("ltp")[1]
    try:
        trips = exchange.gather("trip", max((view.rtprop or 0.0 for view in wire.views().values()), default=0.0), float)
        if max(trips) <= SHORT_TRIP:  # 2
            return wire
        _, ltp = connect("ltp")  # 3
    except NoAnswerError as error:
        if rank == 0:
            warnings.warn(f"gradwire: LTP over UDP gets no answer, using TCP instead: {error}", stacklevel=4)
        return wire
    except BaseException:
        wire.close()
        raise
    wire.close()
    return ltp


def _routes(wire: Connected, peers: Sequence[int]) -> str:
    """Which wire reaches which ranks, for the log."""
    if not isinstance(wire, mixed.MixedWire):
        return f"{wire.protocol} to {_named(peers)}"
    near = [peer for peer in peers if wire.shares_host([peer])]
    far = [peer for peer in peers if peer not in near]
    return ", ".join(
        f"{name} to {_named(ranks)}" for name, ranks in (("shared memory", near), (wire.far, far)) if ranks
    )


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))}" if ranks else "no rank"


def _agree(exchange: StoreExchange, kind: str) -> str:
    """The setting, which must be the same on all ranks."""
    kinds = exchange.gather("wire", kind, str)
    odd = next((rank for rank, other in enumerate(kinds) if other != kinds[0]), None)
    if odd is not None:
        raise ConfigError(f"{VARIABLE}: {kinds[0]} on rank 0 but {kinds[odd]} on rank {odd}; set one for all ranks")
    return kind
