"""LTP from Python: one Endpoint per process, a connection per peer, transfers with a contract on each.

In: peers' addresses and the job secret, buffers, contracts. Out: Deliveries, with what is missing named byte by byte.
The protocol runs on a native thread (docs/ltp.md); it reads and writes the buffers where they lie, so a buffer given
to `send` or `post` must not be touched until its Transfer is done. Missing data is a result; only a lost peer raises.
"""

from __future__ import annotations

import secrets
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

from gradwire._native import LtpConfig as NativeConfig
from gradwire._native import LtpLoop, LtpResult
from gradwire.errors import ConfigError, LinkError, NoAnswerError
from gradwire.flow import LinkView

Reason = Literal["complete", "threshold", "deadline", "refused", "cancelled"]

# Python's signals are looked at this often while a native wait blocks.
_SLICE: Final = 0.2
_WHOLE: Final = 1_000_000
# What one packet carries on the smallest path: 1200 bytes less header, tag and the data frame's header.
RECORD_MOST: Final = 1161
CRITICAL_MOST: Final = 8

_WHY: Final[dict[str, str]] = {
    "no_answer": "does not answer: is it running, is the address right, does a firewall block UDP?",
    "authentication": "sends packets that fail authentication: its GRADWIRE_SECRET differs from ours",
    "rank_in_use": "is already connected to another live process of our rank: two processes claim it",
    "wrong_rank": "is another rank than the one given for this address",
    "too_many_peers": "has no room for another peer",
    "vanished": "has been silent for too long and counts as lost",
    "restarted": "was restarted: the process we were connected to is gone",
    "half_open": "no longer holds the connection we hold",
    "closed": "has closed the connection",
    "protocol": "broke the protocol (a bug: the packets were authentic)",
    "local_close": "was disconnected by our own close()",
}


@dataclass(frozen=True, slots=True)
class LtpConfig:
    """Settings of an endpoint. Times in seconds, sizes in bytes."""

    host: str = "127.0.0.1"
    port: int = 0
    encrypt: bool = True
    congestion: Literal["bbr", "cubic"] = "bbr"
    credit: int = 4 << 20
    largest_datagram: int = 8972
    socket_buffer: int = 8 << 20
    keepalive: float = 1.0
    dead_after: float = 15.0
    connect_timeout: float = 30.0
    deadline_slack: float = 0.03
    first_deadline: float = 10.0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port: {self.port} is not a UDP port; write 0 to let the system choose, or 1..65535")
        if self.congestion not in ("bbr", "cubic"):
            raise ConfigError(f"congestion: {self.congestion!r} is not known; write bbr or cubic")
        if not 1200 <= self.largest_datagram <= 65507:
            raise ConfigError(f"largest_datagram: {self.largest_datagram} lies outside 1200..65507 bytes")
        if not 0 <= self.credit < 2**32:
            raise ConfigError(f"credit: {self.credit} lies outside 0..4294967295 bytes")
        for setting in ("keepalive", "dead_after", "connect_timeout", "deadline_slack", "first_deadline"):
            if getattr(self, setting) <= 0:
                raise ConfigError(f"{setting}: must be a positive number of seconds, not {getattr(self, setting)}")
        if self.dead_after <= 2 * self.keepalive:
            raise ConfigError(f"dead_after: {self.dead_after} s must exceed two keepalives ({2 * self.keepalive} s)")


@dataclass(frozen=True, slots=True)
class Contract:
    """What a transfer promises: `tolerance` 1.0 is reliable, less is "at least this fraction by the deadline".

    Bytes of one `element` arrive together. With `record`, bytes of one record do (self-describing sparse payloads).
    `critical` are byte ranges (offset, length) that arrive whatever the tolerance.
    """

    tolerance: float = 1.0
    element: int = 4
    record: int = 0
    critical: tuple[tuple[int, int], ...] = ()

    def check(self, size: int) -> None:
        if size <= 0:
            raise ConfigError("buffer: a transfer needs at least one byte")
        if not 0 < self.tolerance <= 1:
            raise ConfigError(f"tolerance: {self.tolerance} lies outside 0..1; 1.0 is reliable, 0.98 loses at most 2 %")
        if not 1 <= self.element <= RECORD_MOST:
            raise ConfigError(f"element: {self.element} bytes; an element has 1 to {RECORD_MOST}")
        if not 0 <= self.record <= RECORD_MOST:
            raise ConfigError(f"record: {self.record} bytes do not fit every packet; write 0 (none) to {RECORD_MOST}")
        if len(self.critical) > CRITICAL_MOST:
            raise ConfigError(f"critical: {len(self.critical)} ranges; a transfer has at most {CRITICAL_MOST}")
        for offset, length in self.critical:
            if offset < 0 or length <= 0 or offset + length > size:
                raise ConfigError(f"critical: range ({offset}, {length}) lies outside the buffer's {size} bytes")


RELIABLE: Final = Contract()


@dataclass(frozen=True, slots=True)
class Delivery:
    """What arrived of one transfer. `missing` are byte ranges (offset, length), zero at the receiver."""

    peer: int
    size: int
    arrived: int
    missing: tuple[tuple[int, int], ...]
    reason: Reason
    elapsed: float

    @property
    def complete(self) -> bool:
        return self.arrived == self.size


class Transfer:
    """One transfer under way. Keeps its buffer alive until `wait` returns a Delivery or `cancel` has run."""

    def __init__(self, endpoint: Endpoint, peer: int, token: int, buffer: object) -> None:
        self.peer = peer
        self.token = token
        self._endpoint = endpoint
        self._buffer: object | None = buffer
        self._result: LtpResult | None = None

    def wait(self, timeout: float | None = None) -> Delivery:
        """The outcome; TimeoutError when it is not there in time (the transfer goes on), LinkError for a lost peer."""
        deadline = time.monotonic() + timeout if timeout is not None else float("inf")
        while self._result is None:
            left = deadline - time.monotonic()
            self._finish(self._endpoint.loop.wait(self.token, max(0.0, min(_SLICE, left))))
            if self._result is None and (error := self._endpoint.loop.stopped) is not None:
                why = f"failed ({error})" if error else "was closed"
                raise LinkError(f"rank {self.peer}: the endpoint {why} while a transfer was under way")
            if self._result is None and left <= 0:
                raise TimeoutError(f"transfer with rank {self.peer} not finished after {timeout} s")
        return _delivery(self._result)

    @property
    def done(self) -> bool:
        if self._result is None:
            self._finish(self._endpoint.loop.wait(self.token, 0.0))
        return self._result is not None

    def cancel(self) -> None:
        """Stops the transfer. When this returns, the buffer is neither read nor written any more."""
        self._finish(self._endpoint.loop.cancel(self.peer, self.token))
        self._release()

    def _finish(self, result: LtpResult | None) -> None:
        if result is not None:
            self._result = result
            self._release()

    def _release(self) -> None:
        self._buffer = None
        self._endpoint.pending.pop(self.token, None)


class Endpoint:
    """This process's end of LTP. Use as a context manager, or call `close`."""

    def __init__(self, rank: int, secret: bytes, config: LtpConfig | None = None) -> None:
        if not 0 <= rank < 2**32:
            raise ConfigError(f"rank: {rank} is not a rank")
        if len(secret) < 16:
            raise ConfigError(f"secret: {len(secret)} bytes are too few; use 16 or more random ones (GRADWIRE_SECRET)")
        self.rank = rank
        self.config = config or LtpConfig()
        self.pending: dict[int, Transfer] = {}
        self.loop = _open_loop(rank, secret, self.config)
        self._order = secrets.randbits(63)
        # Also at interpreter exit: the native thread must be gone before buffers are.
        self._finalizer = weakref.finalize(self, self.loop.close)

    @property
    def port(self) -> int:
        return self.loop.port

    def connect(self, peers: Mapping[int, tuple[str, int]], timeout: float | None = None) -> None:
        """Connects to every peer (rank -> host, port). LinkError names the peer that failed, and why."""
        deadline = time.monotonic() + (self.config.connect_timeout + 1 if timeout is None else timeout)
        for rank, (host, port) in peers.items():
            if rank == self.rank:
                raise ConfigError(f"peers: rank {rank} is this process itself")
            try:
                self.loop.connect(rank, host, port)
            except ValueError as error:
                raise ConfigError(f"peers: rank {rank}: {error}; resolve host names first") from error
        for rank, (host, port) in peers.items():
            state = "waiting"
            while state == "waiting":
                left = deadline - time.monotonic()
                state = self.loop.wait_connected(rank, max(0.0, min(_SLICE, left)))
                if state == "waiting" and (left <= 0 or self.loop.stopped is not None):
                    state = "no_answer"
            if state != "connected":
                kind = NoAnswerError if state == "no_answer" else LinkError
                raise kind(f"rank {rank} at {host} port {port} {_WHY[state]}")

    def send(self, peer: int, buffer: Any, contract: Contract = RELIABLE, tag: int = 0) -> Transfer:
        """Starts sending `buffer` (bytes-like or a contiguous CPU tensor); `tag` pairs it with the peer's receive."""
        address, size = _memory(buffer, writable=False)
        contract.check(size)
        self._order += 1
        token = self.loop.send(
            peer, address, size, tag, (contract.element, contract.record), round(contract.tolerance * _WHOLE),
            list(contract.critical), self._order & (2**63 - 1),
        )  # fmt: skip
        return self._track(peer, token, buffer)

    def post(self, peer: int, buffer: Any, tag: int = 0, *, threshold: float = 0.0, deadline: float = 0.0) -> Transfer:
        """Offers `buffer` for the peer's next transfer with `tag`.

        `threshold` and `deadline` (seconds after the first packet) replace Early Close's learned limits when not 0.
        """
        address, size = _memory(buffer, writable=True)
        return self._track(peer, self.loop.receive(peer, address, size, tag, threshold, deadline), buffer)

    def receive(self, peer: int, buffer: Any, tag: int = 0, timeout: float | None = None) -> Delivery:
        """Posts `buffer` and waits for it. On a timeout the receive is withdrawn."""
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
        """What arrived and belonged to no connection, and how often the socket was called."""
        return self.loop.endpoint_stats()

    def view(self, peer: int) -> LinkView:
        """The link to `peer` as `sense` wants it; nothing known when it is not connected."""
        return self.views().get(peer, LinkView())

    def views(self) -> dict[int, LinkView]:
        """All links at once, by peer."""
        return {peer: _view(link) for peer, link in self.stats().items()}

    def close(self) -> None:
        """Says goodbye to all peers and stops the thread. Unfinished transfers end with LinkError."""
        self._finalizer()
        self.pending.clear()

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _track(self, peer: int, token: int, buffer: object) -> Transfer:
        transfer = self.pending[token] = Transfer(self, peer, token, buffer)
        return transfer


def _open_loop(rank: int, secret: bytes, config: LtpConfig) -> LtpLoop:
    native = NativeConfig(rank, secrets.randbits(64), secret)
    native.host, native.port, native.socket_buffer = config.host, config.port, config.socket_buffer
    native.set_protocol(config.encrypt, config.congestion == "cubic", config.credit, config.largest_datagram)
    native.set_times(
        config.keepalive, config.dead_after, config.connect_timeout, config.deadline_slack, config.first_deadline
    )
    try:
        return LtpLoop(native)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"host, port: cannot listen on {config.host} port {config.port}: {error}") from error


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


def _delivery(result: LtpResult) -> Delivery:
    if result.failure != "none":
        raise LinkError(f"rank {result.rank} {_WHY[result.failure]}")
    missing = tuple(result.missing)
    reason: Reason = result.reason  # type: ignore[assignment]
    return Delivery(result.rank, result.size, result.arrived, missing, reason, result.elapsed)


def _memory(buffer: Any, *, writable: bool) -> tuple[int, int]:
    """Address and size of a tensor or of anything with the buffer protocol; torch itself is not needed."""
    if hasattr(buffer, "data_ptr"):
        if buffer.device.type != "cpu" or not buffer.is_contiguous():
            raise ConfigError("buffer: a tensor must be contiguous and on the CPU; call .contiguous() or .cpu() first")
        return buffer.data_ptr(), buffer.numel() * buffer.element_size()
    view = memoryview(buffer)
    if not view.c_contiguous or (writable and view.readonly):
        raise ConfigError("buffer: needs contiguous memory, writable for a receive (a bytearray, not bytes)")
    array = np.frombuffer(view.cast("B"), dtype=np.uint8)
    return int(array.__array_interface__["data"][0]), array.size
