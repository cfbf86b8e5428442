"""Link spec: the values of one direction of a link, checked at construction."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradwire.errors import ConfigError
from gradwire.network.rate_trace import RateTrace
from gradwire.units import Bytes, Rate, Seconds

# Ethernet bytes around an IP packet: header 14, checksum 4, preamble 8, gap 12. Rates include them.
ETHERNET_OVERHEAD = 38
MIN_MTU, MAX_MTU = 576, 65535
UNLIMITED = Rate(math.inf)
ZERO_SECONDS = Seconds(0)
# Default delay of a reordered packet. At 50 Mbit/s and above at least four full packets overtake it; TCP treats three
# as a sign of loss.
REORDER_BY = Seconds(0.001)


@dataclass(frozen=True, slots=True)
class Burst:
    """Gilbert-Elliott loss: probabilities to enter the bad state, to leave it, and of loss while in it.

    A step is one packet on the wire, or the time of a full packet while the link is idle.
    """

    enter: float
    leave: float
    loss: float = 1.0

    def __post_init__(self) -> None:
        for name in ("enter", "leave", "loss"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ConfigError(f"burst.{name}: must be in 0..1, but it is {value}")
        if self.leave == 0:
            raise ConfigError("burst.leave: must be above 0, or the bad state never ends; write for example 0.2")

    @property
    def mean_loss(self) -> float:
        return self.loss * self.enter / (self.enter + self.leave)


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """Rate and queue, then one-way delay with jitter, then loss. `queue` None means 50 ms at the rate.

    `jitter` is the standard deviation of the delay; it changes with a time constant of 50 ms and never reorders.
    A `trace` replaces `rate`. A random share `reorder` of the packets is delayed by `reorder_by`, so that later packets
    overtake them; a random share `duplicate` arrives twice.
    """

    rate: Rate = UNLIMITED
    delay: Seconds = ZERO_SECONDS
    jitter: Seconds = ZERO_SECONDS
    loss: float = 0.0
    burst: Burst | None = None
    queue: Bytes | None = None
    mtu: int = 1500
    trace: RateTrace | None = None
    reorder: float = 0.0
    reorder_by: Seconds = REORDER_BY
    duplicate: float = 0.0

    def __post_init__(self) -> None:
        if not self.rate > 0:
            raise ConfigError(f"rate: must be above 0, but it is {self.rate}; write for example '100mbit'")
        for name in ("delay", "jitter", "reorder_by"):
            if not 0 <= getattr(self, name) < 60:
                raise ConfigError(f"{name}: must be from 0 s to below 60 s, but it is {float(getattr(self, name)):g} s")
        if not 0 <= self.loss < 1:
            raise ConfigError(f"loss: must be from 0 to below 1, but it is {self.loss:g}")
        for name in ("reorder", "duplicate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}: must be a share of packets in 0..1, but it is {getattr(self, name):g}")
        if not MIN_MTU <= self.mtu <= MAX_MTU:
            raise ConfigError(f"mtu: must be in {MIN_MTU}..{MAX_MTU}, but it is {self.mtu}; Ethernet has 1500")
        if self.queue is not None and self.queue < self.mtu + ETHERNET_OVERHEAD:
            raise ConfigError(
                f"queue: {int(self.queue)} bytes are less than one packet; give {self.mtu + ETHERNET_OVERHEAD} or more"
            )

    @property
    def mean_rate(self) -> Rate:
        return self.trace.mean_rate if self.trace else self.rate

    @property
    def mean_loss(self) -> float:
        bursts = self.burst.mean_loss if self.burst else 0.0
        return 1 - (1 - bursts) * (1 - self.loss)

    @property
    def queue_bytes(self) -> float:
        """The queue's size; default: 50 ms at the rate, but at least 64 KiB. Infinite without a rate."""
        if self.queue is not None:
            return float(self.queue)
        rate = self.mean_rate
        return math.inf if math.isinf(rate) else max(65536.0, float(rate) * 0.05)

    def __str__(self) -> str:
        parts = [f"{self.mean_rate}" + (" (trace)" if self.trace else "")]
        if self.delay:
            parts.append(f"{self.delay}" + (f" ± {self.jitter}" if self.jitter else ""))
        if self.mean_loss:
            parts.append(f"loss {self.mean_loss:.2%}" + (" in bursts" if self.burst else ""))
        if self.reorder:
            parts.append(f"{self.reorder:.2%} reordered by {self.reorder_by}")
        if self.duplicate:
            parts.append(f"{self.duplicate:.2%} duplicated")
        return ", ".join(parts)
