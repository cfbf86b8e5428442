"""TCP_INFO: what the kernel knows of a TCP connection: struct tcp_info in, a TcpInfo out. Pure.

The kernel times every acknowledgement, knows whether the sender had more to send, and counts retransmissions. The
struct grows from kernel to kernel and is parsed by its length; `runtime/tcp_sockets.py` reads it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

# Linux 2.6 has this much; later kernels append.
_LEAST: Final = 104
# Fields at offsets 0, 7, 8, 16, 44, 68, 76, 80, 100, 120, 128, 144, 148, 160, 168, 176, 184, 200 and 208.
_INFO: Final = struct.Struct("=B6xBI4xI24xI20xI4xII16xI16xQQ8xII8xQQQQ8xQQ")
_UNKNOWN: Final = 0xFFFFFFFF
# The kernel's "no threshold yet", and BBR's answer to TCP_CC_INFO.
_NO_THRESHOLD: Final = 0x7FFFFFFF
_BBR: Final = struct.Struct("=IIIII")
_BBR_STARTUP: Final = 2.0  # pacing gain; BBR's start-up has 2.89, later phases at most 1.25
_ESTABLISHED: Final = 1
_MICRO: Final = 1e-6


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """One connection. Seconds, bytes, bytes per second; 0 where the kernel does not report a value.

    `delivery_rate` is the last rate that the network limited, or the highest that the sender limited (`app_limited`).
    `busy` is the time with data sent and not acknowledged, or waiting to be sent; of that, `window_limited` the time in
    which the receiver's window or the send buffer was the limit. `threshold` is the slow-start threshold, infinite
    before the first congestion. `bbr_rate` is BBR's bottleneck rate, where the connection uses BBR past its start-up.
    """

    rtt: float
    min_rtt: float
    timeout: float
    mss: int
    window: int
    threshold: float
    idle: float
    delivery_rate: float = 0.0
    app_limited: bool = False
    acked: int = 0
    received: int = 0
    sent: int = 0
    resent: int = 0
    unsent: int = 0
    busy: float = 0.0
    window_limited: float = 0.0
    bbr_rate: float = 0.0
    bbr: bool = False

    @property
    def slow_start(self) -> bool:
        """Whether the window still grows towards its threshold."""
        return not self.bbr_rate if self.bbr else self.window < self.threshold


def parse(data: bytes, cc: bytes = b"") -> TcpInfo | None:
    """None where it is too short or the connection is not established. `cc` is what TCP_CC_INFO returned."""
    if len(data) < _LEAST:
        return None
    (
        state, limited, timeout, mss, idle, rtt, threshold, window, total_resent, acked, received, unsent, least, rate,
        busy, receiver_limited, buffer_limited, sent, resent,
    ) = _INFO.unpack_from(data.ljust(_INFO.size, b"\0"))  # fmt: skip
    if state != _ESTABLISHED:
        return None
    bbr, bbr_rate = _bbr(cc)
    resent = resent or total_resent * mss
    return TcpInfo(
        rtt=rtt * _MICRO,
        min_rtt=(least if 0 < least < _UNKNOWN else rtt) * _MICRO,
        timeout=timeout * _MICRO,
        mss=mss,
        window=window * mss,
        threshold=float("inf") if threshold >= _NO_THRESHOLD else float(threshold * mss),
        idle=idle * 1e-3,
        delivery_rate=float(rate),
        app_limited=bool(limited & 1),
        acked=acked,
        received=received,
        sent=sent or acked + resent,
        resent=resent,
        unsent=unsent,
        busy=busy * _MICRO,
        window_limited=(receiver_limited + buffer_limited) * _MICRO,
        bbr_rate=bbr_rate,
        bbr=bbr,
    )


def _bbr(cc: bytes) -> tuple[bool, float]:
    """Whether the connection uses BBR, and its rate once it is past start-up."""
    if len(cc) != _BBR.size:
        return False, 0.0
    low, high, _, pacing_gain, _ = _BBR.unpack(cc)
    return True, float(low | high << 32) if pacing_gain / 256 < _BBR_STARTUP else 0.0
