"""Shared-memory wire: between processes of one host and one network namespace.

In and out: as in `Wire`; always reliable. Each pair of processes shares two rings in an unnamed memory file, passed
over a local socket between processes of one user that have the job secret; nothing is left behind when a process
ends. The port given to `connect` is a number in the namespace; the host is not used. docs/wires.md.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from gradwire._native import StreamConfig, StreamLoop
from gradwire.errors import ConfigError
from gradwire.transport.wires.native import NativeWire, check_identity
from gradwire.transport.wires.tcp import check_stream


@dataclass(frozen=True, slots=True)
class ShmConfig:
    """Settings of an endpoint. Times in seconds, sizes in bytes.

    `ring` is the memory of each direction to each peer; `spin` is how long a waiting thread polls the rings, yielding
    the processor, before it sleeps.
    """

    port: int = 0
    credit: int = 4 << 20
    ring: int = 1 << 20
    spin: float = 20e-6
    keepalive: float = 1.0
    dead_after: float = 15.0
    connect_timeout: float = 30.0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port: {self.port} is outside 0..65535; write 0 to let the system choose")
        if not 4096 <= self.ring <= 64 << 20 or self.ring & (self.ring - 1):
            raise ConfigError(f"ring: {self.ring} bytes; write a power of two from 4096 to {64 << 20}")
        check_stream(self.credit, self.spin, self.keepalive, self.dead_after, self.connect_timeout)


class ShmEndpoint(NativeWire):
    """This process's shared-memory endpoint. Use as a context manager, or call `close`."""

    protocol = "local sockets"

    def __init__(self, rank: int, secret: bytes, config: ShmConfig | None = None) -> None:
        check_identity(rank, secret)
        self.config = config or ShmConfig()
        super().__init__(rank, _open_loop(rank, secret, self.config), self.config.connect_timeout)


def host_identity() -> str:
    """Equal for two processes exactly when they can share memory: same boot, network namespace and user.

    The network namespace is part of it so that the lab's emulated links are not bypassed.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}/{os.geteuid()}"


def _open_loop(rank: int, secret: bytes, config: ShmConfig) -> StreamLoop:
    native = StreamConfig(rank, secrets.randbits(64), secret)
    native.local, native.port, native.credit, native.ring = True, config.port, config.credit, config.ring
    native.set_times(config.keepalive, config.dead_after, config.connect_timeout, config.spin)
    try:
        return StreamLoop(native)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"port: cannot listen on number {config.port}: {error}") from error
