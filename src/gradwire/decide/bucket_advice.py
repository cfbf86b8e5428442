"""Bucket advice: what another `bucket_cap_mb` would gain, from the times at which DDP's buckets were ready. Pure.

A bucket can be sent only when all of it is ready, so large buckets start late and training waits for the last one. The
model assumes that the gradient becomes ready evenly between one bucket's time and the next. With another bucket size,
each bucket is sent as soon as it is ready and the network is free:

    sent    = max(sent before, ready) + bytes / rate + the cost of one more exchange
    exposed = last sent - last ready
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

MEGABYTE: Final = 2**20
# DDP's default is 25; below one megabyte a bucket's overhead exceeds the time that overlap saves.
CAPS: Final = (1, 2, 5, 10, 25, 50)
# Seconds per exchange besides its bytes and the latency: a hook, two threads, system calls.
EACH: Final = 0.0005
# The least gain, as a share of a step, for which advice is given; the largest cap within a tenth of the best gain wins.
WORTH: Final = 0.03
ENOUGH: Final = 0.9


@dataclass(frozen=True, slots=True)
class BucketAdvice:
    """A `bucket_cap_mb` for DDP and the share of a step that it is predicted to save."""

    bucket_cap_mb: int
    gain: float


def advise(buckets: Sequence[tuple[float, int]], rate: float, latency: float, step: float) -> BucketAdvice | None:
    """`buckets` are (seconds ready after the first, bytes); `rate` is gradient bytes per second at the present level.

    None when too little is known or no other size gains `WORTH` of a step.
    """
    if len(buckets) < 2 or rate <= 0 or step <= 0 or buckets[-1][0] <= 0:
        return None
    now = exposed(buckets, rate, latency)
    others = {cap: now - exposed(cut(buckets, cap * MEGABYTE), rate, latency) for cap in CAPS}
    best = max(others.values())
    if best < WORTH * step:
        return None
    cap = max(cap for cap, gain in others.items() if gain >= ENOUGH * best)
    return BucketAdvice(cap, others[cap] / step)


def exposed(buckets: Sequence[tuple[float, int]], rate: float, latency: float) -> float:
    """Seconds from the last bucket ready until the last is sent."""
    sent = float("-inf")
    for ready, nbytes in buckets:
        sent = max(sent, ready) + nbytes / rate + EACH
    return sent + latency - buckets[-1][0]


def cut(buckets: Sequence[tuple[float, int]], size: int) -> list[tuple[float, int]]:
    """The same gradient in buckets of `size` bytes, each with the time at which it would have been ready."""
    reached = list(accumulate(nbytes for _, nbytes in buckets))
    times = [ready for ready, _ in buckets]
    total, span = reached[-1], times[-1] - times[0]
    # When the first bucket began to fill is not measured; it is extrapolated from the rate of the others.
    began = times[0] - span * buckets[0][1] / max(total - buckets[0][1], 1)

    def when(nbytes: int) -> float:
        index = bisect_left(reached, nbytes)
        low, early = (reached[index - 1], times[index - 1]) if index else (0, began)
        return early + (times[index] - early) * (nbytes - low) / max(reached[index] - low, 1)

    ends = [*range(size, total, size), total]
    return [(when(end), end - begin) for begin, end in zip([0, *ends], ends, strict=False)]
