"""TCP wire: one kernel TCP stream per peer, authenticated and by default encrypted with keys from the job secret.

In and out: as in `Wire`; always reliable, so that any tolerance is met. The thread that calls `send` writes what
the socket takes; a thread in `wait` reads the sockets itself, so that data wakes it directly. docs/wires.md.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from gradwire._native import StreamConfig, StreamLoop
from gradwire.errors import ConfigError
from gradwire.transport.wires.native import NativeWire, check_identity


@dataclass(frozen=True, slots=True)
class TcpConfig:
    """Settings of an endpoint. Times in seconds, sizes in bytes.

    `credit` is what a peer may send before a receive is posted; `spin` is how long a waiting thread polls its sockets,
    yielding the processor, before it sleeps.
    """

    host: str = "127.0.0.1"
    port: int = 0
    encrypt: bool = True
    credit: int = 4 << 20
    spin: float = 0.0
    keepalive: float = 1.0
    dead_after: float = 15.0
    connect_timeout: float = 30.0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port: {self.port} is not a TCP port; write 0 to let the system choose, or 1..65535")
        check_stream(self.credit, self.spin, self.keepalive, self.dead_after, self.connect_timeout)


class TcpEndpoint(NativeWire):
    """This process's TCP endpoint. Use as a context manager, or call `close`."""

    protocol = "TCP"

    def __init__(self, rank: int, secret: bytes, config: TcpConfig | None = None) -> None:
        check_identity(rank, secret)
        self.config, self.secret = config or TcpConfig(), secret
        super().__init__(rank, _open_loop(rank, secret, self.config), self.config.connect_timeout)


def check_stream(credit: int, spin: float, keepalive: float, dead_after: float, connect_timeout: float) -> None:
    """Checks the settings of TCP and shared memory; ConfigError names the one that is wrong."""
    if not 0 <= credit < 2**32:
        raise ConfigError(f"credit: {credit} is outside 0..4294967295 bytes")
    if not 0 <= spin <= 0.01:
        raise ConfigError(f"spin: {spin} s is outside 0..0.01; a longer one takes the core from other ranks")
    for name, value in (("keepalive", keepalive), ("dead_after", dead_after), ("connect_timeout", connect_timeout)):
        if value <= 0:
            raise ConfigError(f"{name}: must be a positive number of seconds, not {value}")
    if dead_after <= 2 * keepalive:
        raise ConfigError(f"dead_after: {dead_after} s must exceed two keepalives ({2 * keepalive} s)")


def _open_loop(rank: int, secret: bytes, config: TcpConfig) -> StreamLoop:
    native = StreamConfig(rank, secrets.randbits(64), secret)
    native.host, native.port, native.encrypt, native.credit = config.host, config.port, config.encrypt, config.credit
    native.set_times(config.keepalive, config.dead_after, config.connect_timeout, config.spin)
    try:
        return StreamLoop(native)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"host, port: cannot listen on {config.host} port {config.port}: {error}") from error
