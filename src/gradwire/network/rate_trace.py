"""Rate trace: the rate of a link over time. Reads mahimahi and "seconds TAB Mbit/s" files, plain or .gz.

A mahimahi line is a millisecond at which one packet of 1504 bytes may leave. It becomes a rate for each millisecond:
the same bytes at the same times, to within a millisecond. The trace repeats.
"""

from __future__ import annotations

import gzip
import math
import random
import zlib
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from gradwire.errors import ConfigError
from gradwire.units import Rate

MAHIMAHI_BYTES = 1504


@dataclass(frozen=True, slots=True)
class RateTrace:
    """Steps (seconds, bytes per second), the first at 0; repeats after `period` seconds."""

    times: tuple[float, ...]
    rates: tuple[float, ...]
    period: float

    def __post_init__(self) -> None:
        if not self.times or len(self.times) != len(self.rates):
            raise ConfigError("trace: needs at least one step, with one rate for each time")
        if self.times[0] != 0 or any(b <= a for a, b in pairwise(self.times)):
            raise ConfigError("trace: times must start at 0 and increase")
        if self.period <= self.times[-1]:
            raise ConfigError(f"trace: period {self.period:g} s ends before the last step at {self.times[-1]:g} s")
        if any(not 0 <= rate < math.inf for rate in self.rates) or not any(self.rates):
            raise ConfigError("trace: rates must be finite, not negative, and not all zero")

    @property
    def mean_rate(self) -> Rate:
        ends = (*self.times[1:], self.period)
        carried = sum(rate * (end - at) for at, end, rate in zip(self.times, ends, self.rates, strict=True))
        return Rate(carried / self.period)

    def rate_at(self, seconds: float) -> Rate:
        seconds %= self.period
        index = max(i for i, at in enumerate(self.times) if at <= seconds)
        return Rate(self.rates[index])


def load_trace(path: Path, setting: str = "trace") -> RateTrace:
    """Read a trace file; the number of columns determines the format."""
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    except (OSError, UnicodeDecodeError, EOFError, zlib.error) as error:
        raise ConfigError(f"{setting}: cannot read {path} ({error}); name a readable trace file") from error
    return parse_trace(text, f"{setting}: {path}")


def parse_trace(text: str, setting: str = "trace") -> RateTrace:
    rows = [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not rows:
        raise ConfigError(f"{setting}: the trace is empty")
    columns = len(rows[0])
    if columns not in (1, 2) or any(len(row) != columns for row in rows):
        raise ConfigError(
            f"{setting}: each line must have one column (mahimahi, milliseconds) or two (seconds, Mbit/s)"
        )
    try:
        numbers = [[float(cell) for cell in row] for row in rows]
    except ValueError as error:
        raise ConfigError(f"{setting}: {error}") from error
    if not all(math.isfinite(number) for row in numbers for number in row):
        raise ConfigError(f"{setting}: a line has a number that is not finite; write times and rates as plain numbers")
    try:
        return _mahimahi([row[0] for row in numbers], setting) if columns == 1 else _steps(numbers)
    except ConfigError as error:
        if str(error).startswith(setting):
            raise
        raise ConfigError(f"{setting}: {str(error).removeprefix('trace: ')}") from error


def _mahimahi(stamps: list[float], setting: str) -> RateTrace:
    if any(b < a for a, b in pairwise(stamps)) or stamps[0] < 0:
        raise ConfigError(f"{setting}: mahimahi times must not decrease")
    period_ms = int(stamps[-1])
    if period_ms <= 0:
        raise ConfigError(f"{setting}: a mahimahi trace must last longer than 0 ms")
    # An entry at millisecond t is the service between t - 1 and t, so that the packet leaves at t as in mahimahi.
    counts = Counter(max(0, int(stamp) - 1) for stamp in stamps)
    times: list[float] = []
    rates: list[float] = []
    for millisecond in range(period_ms):
        rate = counts.get(millisecond, 0) * MAHIMAHI_BYTES * 1000.0
        if not rates or rate != rates[-1]:
            times.append(millisecond / 1000)
            rates.append(rate)
    return RateTrace(tuple(times), tuple(rates), period_ms / 1000)


def _steps(rows: list[list[float]]) -> RateTrace:
    """Each rate is valid from its time to the next; the last one for the mean length of the steps before it."""
    start = rows[0][0]
    times = tuple(row[0] - start for row in rows)
    last = times[-1] / (len(times) - 1) if len(times) > 1 else 1.0
    return RateTrace(times, tuple(Rate.from_mbit(row[1]) for row in rows), times[-1] + last)


def synthetic_trace(mean_mbit: float, spread: float, memory: float, seed: int, seconds: float = 120.0) -> RateTrace:
    """A cellular-like rate: log-normal, relative deviation `spread`, 100 ms steps, correlation time `memory` s."""
    rng = random.Random(seed)
    sigma = math.sqrt(math.log(1 + spread**2))
    keep = math.exp(-0.1 / memory)
    state = rng.gauss(0, 1)
    times, rates = [], []
    for step in range(round(seconds / 0.1)):
        times.append(step / 10)
        rates.append(Rate.from_mbit(mean_mbit * math.exp(sigma * state - sigma**2 / 2)))
        state = keep * state + math.sqrt(1 - keep**2) * rng.gauss(0, 1)
    return RateTrace(tuple(times), tuple(rates), seconds)
