"""Native wire: the base class of all wires, which run on a native event loop.

In: a loop (the bindings' classes), buffers, contracts. Out: Transfers, and LinkErrors that name the peer and what
happened. It never copies a buffer and never holds the GIL while it waits.
"""

from __future__ import annotations

import secrets
import time
import weakref
from collections.abc import Mapping
from typing import Any, Final, Protocol, Self

import numpy as np

from gradwire._native import LtpResult
from gradwire.errors import ConfigError, LinkError, NoAnswerError, PeerClosedError
from gradwire.fork import keep_forever, void_in_child
from gradwire.transport.wires.base import RELIABLE, Contract, Delivery, Reason
from gradwire.transport.wires.ledger import Ledger
from gradwire.types import Energies, LinkView

# Seconds between two checks for Python signals while a native wait blocks.
_SLICE: Final = 0.2
_MILLION: Final = 1_000_000  # tolerances are passed to the loop in millionths

_WHY: Final[dict[str, str]] = {
    "no_answer": "does not answer: is it running, is the address right, does a firewall block {protocol}?",
    "authentication": "sends packets that fail authentication: its GRADWIRE_SECRET differs from this rank's",
    "rank_in_use": "is already connected to another live process of this rank: two processes run as the same rank",
    "wrong_rank": "is another rank than the one expected at this address",
    "too_many_peers": "accepts no more peers",
    "vanished": "has been silent for too long and counts as lost",
    "restarted": "was restarted: the process that this rank was connected to is gone",
    "half_open": "no longer has the connection that this rank has",
    "closed": "has closed the connection",
    "protocol": "broke the protocol (a bug: the packets were authentic)",
    "local_close": "was disconnected by close() on this rank",
    "wrong_version": "speaks another version of gradwire's wire protocol: install the same gradwire on every rank",
    "key_limit": "was disconnected: a key reached its limit of use before it was changed",
}


class Loop(Protocol):
    """A native event loop, as the bindings expose it. Buffers given by address stay alive until waited for."""

    @property
    def port(self) -> int: ...
    @property
    def stopped(self) -> str | None: ...
    def connect(self, rank: int, host: str, port: int) -> None: ...
    def wait_connected(self, rank: int, timeout: float) -> str: ...
    def send(  # noqa: PLR0913, PLR0917
        self,
        rank: int,
        data: int,
        size: int,
        tag: int,
        unit: tuple[int, int],
        tolerance: int,
        critical: list[tuple[int, int]],
        seed: int,
        importance: tuple[int, int, int, int],
    ) -> int: ...
    def receive(self, rank: int, data: int, size: int, tag: int, threshold: float, deadline: float) -> int: ...
    def wait(self, token: int, timeout: float) -> LtpResult | None: ...
    def cancel(self, rank: int, token: int) -> LtpResult | None: ...
    def detach(self, rank: int, token: int) -> None: ...
    def link_stats(self) -> dict[int, dict[str, float]]: ...
    def endpoint_stats(self) -> dict[str, int]: ...
    def close(self) -> None: ...


class VoidLoop:
    """The loop of a wire that a forked process inherited; it can be closed, anything else is a LinkError."""

    def close(self) -> None:
        """Nothing to do: the parent process owns the loop."""

    def __getattr__(self, name: str) -> Any:
        raise LinkError("this wire belongs to the parent of this forked process; open a new one here")


class NativeTransfer:
    """A started transfer. Keeps its memory alive and in place until `wait` returns a Delivery or `cancel` has run."""

    __slots__ = ("_inbound", "_keeper", "_result", "_wire", "peer", "token")

    def __init__(self, wire: NativeWire, peer: int, token: int, keeper: object, inbound: bool) -> None:
        self.peer = peer
        self.token = token
        self._inbound = inbound
        self._wire = wire
        self._keeper: object | None = keeper
        self._result: LtpResult | None = None

    def wait(self, timeout: float | None = None) -> Delivery:
        """The result; TimeoutError after `timeout` (the transfer continues), LinkError for a lost peer."""
        loop = self._wire.loop
        deadline = time.monotonic() + timeout if timeout is not None else float("inf")
        while self._result is None:
            left = deadline - time.monotonic()
            self._finish(loop.wait(self.token, max(0.0, min(_SLICE, left))))
            if self._result is None and (error := loop.stopped) is not None:
                why = f"failed ({error})" if error else "was closed"
                raise LinkError(f"rank {self.peer}: the endpoint {why} during a transfer")
            if self._result is None and left <= 0:
                raise TimeoutError(f"transfer with rank {self.peer} not finished after {timeout} s")
        return self._delivery(self._result)

    @property
    def done(self) -> bool:
        if self._result is None:
            self._finish(self._wire.loop.wait(self.token, 0.0))
        return self._result is not None

    def cancel(self) -> None:
        """Stops the transfer. When this returns, the buffer is neither read nor written any more."""
        result = self._wire.loop.cancel(self.peer, self.token)
        self._result = self._result if result is None else result
        self._release()

    def detach(self) -> None:
        """Of a send: the buffer may be changed from now on; the transfer continues from a copy."""
        self._wire.loop.detach(self.peer, self.token)
        self.release_memory()

    def _finish(self, result: LtpResult | None) -> None:
        if result is not None:
            self._result = result
            self._release()
            self._wire.record(result, self._inbound)

    def release_memory(self) -> None:
        """Native code no longer uses the memory: its owner may change it again."""
        self._keeper = None

    def _release(self) -> None:
        self.release_memory()
        self._wire.pending.pop(self.token, None)

    def _delivery(self, result: LtpResult) -> Delivery:
        if result.failure != "none":
            kind = PeerClosedError if result.failure == "closed" else LinkError
            raise kind(f"rank {result.rank} {self._wire.explain(result.failure)}")
        missing = tuple(result.missing)
        reason: Reason = result.reason  # type: ignore[assignment]
        return Delivery(result.rank, result.size, result.arrived, missing, reason, result.elapsed)


class NativeWire:
    """A wire whose work is done by a native loop. Use as a context manager, or call `close`."""

    protocol = "the network"
    secret: bytes

    def __init__(self, rank: int, loop: Loop, connect_timeout: float) -> None:
        self.rank = rank
        self.loop = loop
        self.pending: dict[int, NativeTransfer] = {}
        self.ledger = Ledger()
        self._connect_timeout = connect_timeout
        self._order = secrets.randbits(63)
        # Addresses of the peers it was asked to connect to.
        self.addresses: dict[int, tuple[str, int]] = {}
        # Also at interpreter exit: the native thread must end before buffers are freed.
        self._finalizer = weakref.finalize(self, loop.close)
        void_in_child(self, NativeWire._void)

    @property
    def port(self) -> int:
        return self.loop.port

    def explain(self, failure: str) -> str:
        """The failure in words, as the end of a sentence that begins with the peer."""
        return _WHY[failure].format(protocol=self.protocol)

    def connect(self, peers: Mapping[int, tuple[str, int]], timeout: float | None = None) -> None:
        """Connects to every peer (rank -> host, port). LinkError names the peer that failed, and why."""
        deadline = time.monotonic() + (self._connect_timeout + 1 if timeout is None else timeout)
        for rank, (host, port) in peers.items():
            if rank == self.rank:
                raise ConfigError(f"peers: rank {rank} is this process itself")
            try:
                self.loop.connect(rank, host, port)
            except ValueError as error:
                raise ConfigError(f"peers: rank {rank}: {error}; resolve host names first") from error
        self.addresses.update(peers)
        for rank, (host, port) in peers.items():
            state = self._connected(rank, deadline)
            if state != "connected":
                kind = NoAnswerError if state == "no_answer" else LinkError
                raise kind(f"rank {rank} at {host} port {port} {self.explain(state)}")

    def reconnect(self, rank: int) -> None:
        """Start to connect again to a lost peer at its last address, without waiting. Both sides must do so."""
        self.loop.connect(rank, *self.addresses[rank])

    def connection_state(self, rank: int) -> str:
        """ "connected", "waiting" while connecting, or the name of what failed."""
        return self.loop.wait_connected(rank, 0.0)

    def _connected(self, rank: int, deadline: float) -> str:
        state = "waiting"
        while state == "waiting":
            left = deadline - time.monotonic()
            state = self.loop.wait_connected(rank, max(0.0, min(_SLICE, left)))
            if state == "waiting" and (left <= 0 or self.loop.stopped is not None):
                return "no_answer"
        return state

    def send(self, peer: int, buffer: Any, contract: Contract = RELIABLE, tag: int = 0) -> NativeTransfer:
        """Starts sending `buffer` (bytes-like or a contiguous CPU tensor); `tag` pairs it with the peer's receive."""
        address, size, keeper = memory_of(buffer, writable=False)
        contract.check(size)
        self._order += 1
        token = self.loop.send(
            peer, address, size, tag, (contract.element, contract.record), round(contract.tolerance * _MILLION),
            list(contract.critical), self._order & (2**63 - 1), _importance(contract.energies),
        )  # fmt: skip
        return self._track(peer, token, keeper, inbound=False)

    def post(
        self, peer: int, buffer: Any, tag: int = 0, *, threshold: float = 0.0, deadline: float = 0.0
    ) -> NativeTransfer:
        """Offers `buffer` for the peer's next transfer with `tag`.

        `threshold` and `deadline` (seconds after the first packet) replace Early Close's learned limits when not 0.
        """
        address, size, keeper = memory_of(buffer, writable=True)
        token = self.loop.receive(peer, address, size, tag, threshold, deadline)
        return self._track(peer, token, keeper, inbound=True)

    def receive(self, peer: int, buffer: Any, tag: int = 0, timeout: float | None = None) -> Delivery:
        """Posts `buffer` and waits for it. On a timeout the receive is cancelled."""
        transfer = self.post(peer, buffer, tag)
        try:
            return transfer.wait(timeout)
        except TimeoutError:
            transfer.cancel()
            raise

    def stats(self) -> dict[int, dict[str, float]]:
        """Per peer: estimates (seconds, bytes per second) and counters, as the last ACK left them."""
        return self.loop.link_stats()

    def counters(self) -> dict[str, int]:
        """Counts of packets that belonged to no connection, and of socket calls."""
        return self.loop.endpoint_stats()

    def view(self, peer: int) -> LinkView:
        """The link to `peer` in the form that `sense` takes; empty when it is not connected."""
        return self.views().get(peer, LinkView())

    def views(self) -> dict[int, LinkView]:
        """All links at once, by peer."""
        return {peer: _view(link) for peer, link in self.stats().items()}

    def close(self) -> None:
        """Closes all connections and stops the thread. Unfinished transfers end with LinkError."""
        # Not through the finalizer, which runs once: a second caller, too, must wait until the thread has ended.
        self.loop.close()
        self._finalizer.detach()
        pending, self.pending = self.pending, {}
        for transfer in pending.values():
            transfer.release_memory()

    def _void(self) -> None:
        """In a forked child: the native thread does not exist, and the loop's locks may stay locked for ever."""
        self._finalizer.detach()
        keep_forever(self.loop)
        self.loop = VoidLoop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def record(self, result: LtpResult, inbound: bool) -> None:
        """Add a transfer that ended to the ledger."""
        if result.failure != "none":
            return
        size, arrived = result.size, result.arrived
        if inbound:
            self.ledger.add_received(result.rank, arrived, result.elapsed, size - arrived, result.reason)
        elif arrived < size:
            self.ledger.add_undelivered(result.rank, size - arrived)

    def _track(self, peer: int, token: int, keeper: object, inbound: bool) -> NativeTransfer:
        transfer = self.pending[token] = NativeTransfer(self, peer, token, keeper, inbound)
        return transfer


def _importance(energies: Energies | None) -> tuple[int, int, int, int]:
    """Offset, span, and the address and number of the energies, which the loop copies; no energies: all zero."""
    if energies is None:
        return 0, 0, 0, 0
    address = int(energies.values.__array_interface__["data"][0])
    return energies.offset, energies.span, address, energies.values.size


def _view(link: Mapping[str, float]) -> LinkView:
    known = link["bottleneck"] > 0
    return LinkView(
        rtprop=link["rtprop"],
        bandwidth=link["bottleneck"] if known else None,
        queueing=max(0.0, link["srtt"] - link["rtprop"]),
        variation=link["rtt_variation"],
        loss=link["loss"],
        confidence=1.0 if known else 0.5,
    )


def check_identity(rank: int, secret: bytes) -> None:
    """ConfigError for an impossible rank or a job secret that is too short."""
    if not 0 <= rank < 2**32:
        raise ConfigError(f"rank: {rank} is not a rank")
    if len(secret) < 16:
        raise ConfigError(f"secret: {len(secret)} bytes are too few; use 16 or more random ones (GRADWIRE_SECRET)")


def memory_of(buffer: Any, *, writable: bool) -> tuple[int, int, object]:
    """Address and size of a tensor or of anything with the buffer protocol, and what keeps the memory in place.

    The buffer alone would not: a bytearray moves when it grows, a tensor can be given another storage. A memoryview
    prevents the first, a reference to the storage the second. Works without torch.
    """
    if hasattr(buffer, "data_ptr"):
        if buffer.device.type != "cpu" or not buffer.is_contiguous():
            raise ConfigError("buffer: a tensor must be contiguous and on the CPU; call .contiguous() or .cpu() first")
        return buffer.data_ptr(), buffer.numel() * buffer.element_size(), buffer.untyped_storage()
    view = memoryview(buffer)
    if not view.c_contiguous or (writable and view.readonly):
        raise ConfigError("buffer: needs contiguous memory, writable for a receive (a bytearray, not bytes)")
    array = np.frombuffer(view.cast("B"), dtype=np.uint8)
    return int(array.__array_interface__["data"][0]), array.size, view
