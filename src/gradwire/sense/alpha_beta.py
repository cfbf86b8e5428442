"""Alpha-beta fit: latency, overhead and bandwidth from times of operations of different size, with their uncertainty.

An operation of b bytes takes latency + overhead + slow start + b / bandwidth + waiting for a late rank. All parts but
latency are unknown or vary, and none is negative, so every rate that times show is a lower bound. How far the bandwidth
may be above it follows from what the other parts can take at most:

    one size    lower = b / (time - latency)              upper: as if TCP had slow-started, where it may have
    two sizes   lower = (large - small) / (their times' difference), upper likewise; overhead drops out

A bandwidth is identified where upper / lower is small. One size cannot separate overhead from bytes, so two sizes are
preferred where they contradict it. Times of one size are summarised by a low quantile: noise and waits only add to
them. All operations must be of one network: after a change (sense/change_detector.py) a new fit is started.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from gradwire.sense.slow_start import INITIAL_WINDOW, rate_with_slow_start

# Operations kept of one size, and how many sizes; a level gives one or two sizes, and few levels are in use.
KEPT: Final = 6
SIZES: Final = 8
# Sizes within a factor of 2 ** (1 / 2) are one size.
PER_OCTAVE: Final = 2
# The quantile of the times of one size: below the median, because waits only add; not the minimum, because clocks vary.
QUANTILE: Final = 0.35
# Sizes must differ by this factor for a fit.
CONTRAST: Final = 1.5
# Upper / lower up to which a bandwidth is identified: then the rate is within 25 % of both, which leaves some room for
# noise.
IDENTIFIES: Final = 1.4
# What an exchange may take besides latency and bytes for threads and wake-ups, for each phase, where two sizes have not
# measured it.
WAKE_UPS: Final = 0.002
# Two sizes replace one size's lower rate where they differ by more than this.
CONTRADICTS: Final = 1.2
# Operations after which a size is out of date.
FRESH: Final = 8
# The least share of an operation's time that must be other than latency: below, clocks decide what is left.
LEAST_MOVING: Final = 0.3
# Round trips that bytes must take after a pause before their rate can be the path's: in fewer, the window is the limit,
# whatever it is.
ROUNDS: Final = 6.0
# The same where the window is open from the start: what fits it travels at the rate of the link, which is not what
# congestion control lets a longer transfer have.
OPEN_ROUNDS: Final = 2.0
# Times of one size from which their own spread is used; its least relative value; and the standard deviation of a
# Gaussian in units of the median absolute deviation.
ENOUGH: Final = 3
LEAST_NOISE: Final = 0.03
GAUSSIAN: Final = 1.4826


@dataclass(frozen=True, slots=True)
class Timed:
    """One operation, or several that overlap: bytes, seconds, how many of those are latency, and how many more may be
    (what a small message usually takes above the least)."""

    nbytes: int
    seconds: float
    latency: float
    slack: float = 0.0

    @property
    def moving(self) -> float:
        return self.seconds - self.latency


@dataclass(frozen=True, slots=True)
class Fit:
    """`lower` and `upper` bound the bandwidth; `overhead` is the time besides bytes, latency included; `nbytes` is the
    size that it comes from, `samples` how many operations, `pair` whether of two sizes."""

    lower: float
    upper: float
    overhead: float
    nbytes: int
    samples: int
    pair: bool

    @property
    def rate(self) -> float:
        """Nearer to the upper end: the parts that it subtracts are usually there."""
        return math.inf if math.isinf(self.upper) else self.lower * self.width ** (2 / 3)

    @property
    def width(self) -> float:
        return self.upper / self.lower

    @property
    def identified(self) -> bool:
        return self.width <= IDENTIFIES


@dataclass(frozen=True, slots=True)
class Transport:
    """What is known of how bytes travel. `slow_start`: whether every step begins with a small window, None where that
    is not known; the `phases` of an exchange follow one another on connections of their own."""

    rtt: float = 0.0
    slow_start: bool | None = None
    phases: int = 1


@dataclass(slots=True)
class _Size:
    """The operations of about one size."""

    times: deque[Timed] = field(default_factory=lambda: deque(maxlen=KEPT))
    last: int = 0

    @property
    def typical(self) -> Timed:
        ordered = sorted(self.times, key=lambda one: one.moving)
        return ordered[int(QUANTILE * len(ordered))]

    def error(self, noise: float) -> float:
        """Standard error of the typical time, from the times themselves where there are enough."""
        if len(self.times) >= ENOUGH:
            middle = statistics.median(one.moving for one in self.times)
            spread = statistics.median(abs(one.moving - middle) for one in self.times) / middle if middle > 0 else noise
            noise = max(LEAST_NOISE, GAUSSIAN * spread)
        return noise * self.typical.seconds / math.sqrt(len(self.times))


@dataclass(slots=True)
class AlphaBeta:
    """Keeps operations by size. Call `add` for each, then `fit`."""

    _sizes: dict[int, _Size] = field(default_factory=dict)
    _count: int = 0

    def add(self, one: Timed) -> None:
        if one.nbytes <= 0 or one.seconds <= 0:
            return
        self._count += 1
        size = self._sizes.setdefault(_size_class(one.nbytes), _Size())
        if self._count - size.last > FRESH:
            size.times.clear()
        size.times.append(one)
        size.last = self._count
        if len(self._sizes) > SIZES:
            del self._sizes[min(self._sizes, key=lambda each: self._sizes[each].last)]

    def fit(self, nbytes: int, transport: Transport, overhead: float = 0.0, noise: float = 0.1) -> Fit | None:
        """What operations of about `nbytes` show, alone or together with another size. `overhead` is that of an earlier
        fit, `noise` the relative deviation of times where there are too few to tell."""
        here = self._sizes.get(_size_class(nbytes))
        if here is None:
            return None
        alone = _alone(here, transport, max(overhead, self._hidden(here, noise)))
        found = (self._pair(here, other, transport, noise) for other in self._sizes.values() if other is not here)
        best = min((fit for fit in found if fit is not None), key=lambda fit: fit.width, default=None)
        if best is None or not best.identified:
            return alone
        if alone is None or not alone.identified or best.rate > CONTRADICTS * alone.rate:
            return best
        return alone

    def seen(self, nbytes: int) -> bool:
        """Whether there were operations of about this size lately."""
        size = self._sizes.get(_size_class(nbytes))
        return size is not None and self._count - size.last <= FRESH

    def _hidden(self, here: _Size, noise: float) -> float:
        """Where a larger size takes no longer, bytes do not matter, and all of this size's time may be overhead."""
        mine = here.typical
        for other in self._sizes.values():
            larger = other.typical
            error = 2 * math.hypot(here.error(noise), other.error(noise))
            fresh = larger.nbytes >= CONTRAST * mine.nbytes and self._count - other.last <= FRESH
            if fresh and larger.moving - mine.moving <= error:
                return mine.seconds
        return 0.0

    def _pair(self, here: _Size, other: _Size, transport: Transport, noise: float) -> Fit | None:
        small, large = sorted((here, other), key=lambda size: size.typical.nbytes)
        less, more = small.typical, large.typical
        if more.nbytes < CONTRAST * less.nbytes or self._count - large.last > FRESH:
            return None
        difference, nbytes = more.moving - less.moving, more.nbytes - less.nbytes
        error = math.hypot(large.error(noise), small.error(noise))
        if difference <= 2 * error:
            return None
        lower, upper = nbytes / difference, nbytes / (difference - error)
        # Rounds that only the larger one needs: those after a window as large as the smaller one.
        upper = max(upper, _most(nbytes, difference - error, transport, less.nbytes))
        overhead = max(0.0, more.seconds - more.nbytes / lower)
        samples = min(len(large.times), len(small.times))
        return Fit(lower, upper, overhead, more.nbytes, samples, pair=True)


def _alone(size: _Size, transport: Transport, overhead: float) -> Fit | None:
    one = size.typical
    moving = one.moving
    if moving < LEAST_MOVING * one.seconds:
        return None
    least = moving - max(one.slack + WAKE_UPS * min(transport.phases, 2), overhead - one.latency)
    lower, upper = one.nbytes / moving, one.nbytes / least if least > 0 else math.inf
    upper = max(upper, _most(one.nbytes, least, transport))
    return Fit(lower, upper, 0.0, one.nbytes, len(size.times), pair=False)


def _most(nbytes: int, seconds: float, transport: Transport, window: float = INITIAL_WINDOW) -> float:
    """The highest rate of a long transfer, if bytes took this long; infinite where they fit a few windows. All
    connections slow-start at once, phases one after another."""
    rtt, phases = transport.rtt, transport.phases
    if rtt <= 0:
        return 0.0
    if transport.slow_start is False:
        return math.inf if seconds < OPEN_ROUNDS * rtt else 0.0
    if seconds < ROUNDS * rtt * phases:
        return math.inf
    return rate_with_slow_start(nbytes / phases, seconds / phases, rtt, max(INITIAL_WINDOW, window / phases))


def _size_class(nbytes: int) -> int:
    return round(PER_OCTAVE * math.log2(nbytes))
