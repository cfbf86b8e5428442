"""Mixed wire: shared memory to peers on this host and in this network namespace, LTP or TCP to all others.

In: two wires, and which peers share the host. Out: transfers of the wire that reaches the peer. `open_wire` makes the
wire that GRADWIRE_WIRE names, for `rendezvous`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

from gradwire.errors import ConfigError
from gradwire.transport.wires.base import RELIABLE, Contract, Delivery, Transfer
from gradwire.transport.wires.ltp import Endpoint, LtpConfig
from gradwire.transport.wires.native import NativeWire
from gradwire.transport.wires.shm import ShmConfig, ShmEndpoint, host_identity
from gradwire.transport.wires.tcp import TcpConfig, TcpEndpoint
from gradwire.types import LinkView

WIRE_VARIABLE: Final = "GRADWIRE_WIRE"
FAR: Final = ("ltp", "tcp")
KINDS: Final = ("auto", *FAR, "shm")


class MixedWire:
    """`near` for peers on this host, `far` for the others; without `far`, a peer on another host is a ConfigError."""

    def __init__(self, near: ShmEndpoint, far: NativeWire | None, identity: str | None = None) -> None:
        self.rank = near.rank
        self._near, self._far = near, far
        self._identity = identity or host_identity()
        self._local: dict[int, int] = {}  # ranks on this host -> their number in the namespace

    @property
    def port(self) -> int:
        return (self._far or self._near).port

    @property
    def far(self) -> str:
        """The name of the wire to other hosts."""
        return {"UDP": "LTP"}.get(self._far.protocol, self._far.protocol) if self._far else "nothing"

    def local_address(self) -> tuple[str, int]:
        """The identity of this host, and the number by which processes on it reach this one."""
        return self._identity, self._near.port

    def set_local_addresses(self, others: Mapping[int, tuple[str, int]]) -> None:
        """The `local_address` of every other rank; called before `connect`. Ranks not given count as remote."""
        self._local = {rank: number for rank, (host, number) in others.items() if host == self._identity}

    def wire_to(self, peer: int) -> NativeWire:
        """The wire that reaches a peer."""
        if peer in self._local:
            return self._near
        if self._far is None:
            raise ConfigError(
                f"{WIRE_VARIABLE}: rank {peer} is on another host or in another network namespace, which shm cannot "
                "reach; write auto, ltp or tcp"
            )
        return self._far

    def shares_host(self, ranks: Iterable[int]) -> bool:
        """Whether all of them run on this host."""
        return all(rank in self._local or rank == self.rank for rank in ranks)

    def connect(self, peers: Mapping[int, tuple[str, int]], timeout: float | None = None) -> None:
        """Connects to every peer (rank -> host, port of its far wire); LinkError names the one that failed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        far = {rank: at for rank, at in peers.items() if self.wire_to(rank) is not self._near}
        near = {rank: (at[0], self._local[rank]) for rank, at in peers.items() if rank in self._local}
        self._near.connect(near, timeout)
        if self._far is not None and far:
            self._far.connect(far, None if deadline is None else max(0.0, deadline - time.monotonic()))

    def send(self, peer: int, buffer: Any, contract: Contract = RELIABLE, tag: int = 0) -> Transfer:
        """As `Wire.send`."""
        return self.wire_to(peer).send(peer, buffer, contract, tag)

    def post(self, peer: int, buffer: Any, tag: int = 0, *, threshold: float = 0.0, deadline: float = 0.0) -> Transfer:
        """As `Wire.post`."""
        return self.wire_to(peer).post(peer, buffer, tag, threshold=threshold, deadline=deadline)

    def receive(self, peer: int, buffer: Any, tag: int = 0, timeout: float | None = None) -> Delivery:
        """As `Wire.receive`."""
        return self.wire_to(peer).receive(peer, buffer, tag, timeout)

    def stats(self) -> dict[int, dict[str, float]]:
        """Per connected peer, from the wire that reaches it."""
        return {**(self._far.stats() if self._far else {}), **self._near.stats()}

    def view(self, peer: int) -> LinkView:
        """The link to `peer` in the form that `sense` takes."""
        return self.views().get(peer, LinkView())

    def views(self) -> dict[int, LinkView]:
        """All links at once, by peer."""
        return {**(self._far.views() if self._far else {}), **self._near.views()}

    def close(self) -> None:
        """Closes both."""
        self._near.close()
        if self._far is not None:
            self._far.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def wire_kind(environment: Mapping[str, str] | None = None) -> str:
    """GRADWIRE_WIRE, checked; auto when it is not set."""
    kind = (os.environ if environment is None else environment).get(WIRE_VARIABLE) or "auto"
    if kind not in KINDS:
        raise ConfigError(f"{WIRE_VARIABLE}: {kind!r} is not a wire; write one of {', '.join(KINDS)}")
    return kind


def open_wire(
    rank: int, secret: bytes, host: str, port: int = 0, *, kind: str = "auto", far: str = "ltp"
) -> MixedWire | NativeWire:
    """A wire that listens on `host` and `port`.

    `auto` is shared memory on this host and `far` (ltp or tcp) to other hosts; `ltp` and `tcp` use that one for every
    peer; `shm` reaches peers on this host only.
    """
    if kind in FAR:
        return _open_far(kind, rank, secret, host, port)
    other = _open_far(far, rank, secret, host, port) if kind == "auto" else None
    try:
        return MixedWire(ShmEndpoint(rank, secret, ShmConfig()), other)
    except BaseException:
        if other is not None:
            other.close()
        raise


def _open_far(kind: str, rank: int, secret: bytes, host: str, port: int) -> NativeWire:
    if kind == "tcp":
        return TcpEndpoint(rank, secret, TcpConfig(host=host, port=port))
    return Endpoint(rank, secret, LtpConfig(host=host, port=port))
