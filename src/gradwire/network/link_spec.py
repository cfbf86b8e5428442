"""LinkSpec: one direction of one link, as plain values. Checked when made, trusted afterwards."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradwire.errors import ConfigError
from gradwire.network.rate_trace import RateTrace
from gradwire.units import Bytes, Rate, Seconds

# Ethernet around an IP packet: header 14, checksum 4, preamble 8, gap 12. Rates are what the wire carries.
ETHERNET_OVERHEAD = 38
MIN_MTU, MAX_MTU = 576, 65535
UNLIMITED = Rate(math.inf)
AT_ONCE = Seconds(0)
# How long a packet is held back unless told otherwise: at 50 Mbit/s and more at least four full packets overtake it,
# and TCP takes three for a loss.
REORDER_BY = Seconds(0.001)


@dataclass(frozen=True, slots=True)
class Burst:
    """Gilbert-Elliott loss: chance to enter the bad state, to leave it, and of loss while in it.

    A step is a wire packet, or the time that a full one would have taken while the link was idle.
    """

    enter: float
    leave: float
    loss: float = 1.0

    def __post_init__(self) -> None:
        for name in ("enter", "leave", "loss"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ConfigError(f"burst.{name}: {value} lies outside 0..1")
        if self.leave == 0:
            raise ConfigError("burst.leave: 0 means that a bad state never ends; write for example 0.2")

    @property
    def mean_loss(self) -> float:
        return self.loss * self.enter / (self.enter + self.leave)


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """Rate and queue, then one-way delay with jitter, then loss. `queue` None means 50 ms at the rate.

    `jitter` is the standard deviation of the delay; it wanders with a memory of 50 ms and never reorders.
    A `trace` takes the place of `rate`. At random, a share of `reorder` of the packets is held back by `reorder_by`, so
    that packets sent later overtake them, and a share of `duplicate` arrives twice.
    """

    rate: Rate = UNLIMITED
    delay: Seconds = AT_ONCE
    jitter: Seconds = AT_ONCE
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
            raise ConfigError(f"rate: {self.rate} carries nothing; write for example '100mbit', or leave the link out")
        for name in ("delay", "jitter", "reorder_by"):
            if not 0 <= getattr(self, name) < 60:
                raise ConfigError(f"{name}: {float(getattr(self, name)):g} s is not between 0 and 60 s")
        if not 0 <= self.loss < 1:
            raise ConfigError(f"loss: {self.loss:g} is not in 0..1 (1 excluded: nothing would ever arrive)")
        for name in ("reorder", "duplicate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name}: {getattr(self, name):g} is a share of the packets, in 0..1")
        if not MIN_MTU <= self.mtu <= MAX_MTU:
            raise ConfigError(f"mtu: {self.mtu} is not in {MIN_MTU}..{MAX_MTU}; 1500 is Ethernet's")
        if self.queue is not None and self.queue < self.mtu + ETHERNET_OVERHEAD:
            raise ConfigError(
                f"queue: {int(self.queue)} bytes hold not even one packet; give {self.mtu + ETHERNET_OVERHEAD} or more"
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
        """The queue's size; 50 ms at the rate, but at least 64 KiB, where none is given. Infinite without a rate."""
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
