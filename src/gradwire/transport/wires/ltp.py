"""LTP wire: loss-tolerant transfers over UDP. One Endpoint per process, one connection per peer.

In: peers' addresses and the job secret, buffers, contracts. Out: Deliveries, with the byte ranges that are missing. The
protocol runs on a native thread (docs/ltp.md).
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Literal

from gradwire._native import LtpConfig as NativeConfig
from gradwire._native import LtpLoop
from gradwire.errors import ConfigError
from gradwire.transport.wires.base import CRITICAL_LIMIT, RECORD_LIMIT, RELIABLE, Contract, Delivery, Reason
from gradwire.transport.wires.native import NativeTransfer as Transfer
from gradwire.transport.wires.native import NativeWire, check_identity

__all__ = [
    "CRITICAL_LIMIT", "RECORD_LIMIT", "RELIABLE", "Contract", "Delivery", "Endpoint", "LtpConfig", "Reason", "Transfer",
]  # fmt: skip


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
            raise ConfigError(f"congestion: {self.congestion!r} is unknown; write bbr or cubic")
        if not 1200 <= self.largest_datagram <= 65507:
            raise ConfigError(f"largest_datagram: {self.largest_datagram} is outside 1200..65507 bytes")
        if not 0 <= self.credit < 2**32:
            raise ConfigError(f"credit: {self.credit} is outside 0..4294967295 bytes")
        for setting in ("keepalive", "dead_after", "connect_timeout", "deadline_slack", "first_deadline"):
            if getattr(self, setting) <= 0:
                raise ConfigError(f"{setting}: must be a positive number of seconds, not {getattr(self, setting)}")
        if self.dead_after <= 2 * self.keepalive:
            raise ConfigError(f"dead_after: {self.dead_after} s must exceed two keepalives ({2 * self.keepalive} s)")


class Endpoint(NativeWire):
    """This process's LTP endpoint. Use as a context manager, or call `close`."""

    protocol = "UDP"

    def __init__(self, rank: int, secret: bytes, config: LtpConfig | None = None) -> None:
        check_identity(rank, secret)
        self.config, self.secret = config or LtpConfig(), secret
        super().__init__(rank, _open_loop(rank, secret, self.config), self.config.connect_timeout)


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
