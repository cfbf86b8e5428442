"""Startup probe: measures what the network carries, before the first step is sent.

What a step shows of the network takes effect two or three steps later, and on a slow network those steps would be the
slowest of all. So ranks with an adaptive level exchange a little data when they attach:

    1. three rounds of nothing but a record from every rank to every other; the first gathers the ranks, the quicker of
       the others gives the latency
    2. larger and larger parts, until bytes and not latency take the time, or the largest was sent; the last part gives
       the rate: by then TCP's window has had some time to open

Every record begins with the time that the previous round took on its sender. So after each round all ranks know the
slowest rank's time; they stop together and get the same result.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Final

import torch

from gradwire.errors import LinkError
from gradwire.runtime.pipeline import Pipeline
from gradwire.transport.lanes.base import AllToAll, Op, Timing

# What a rank sends in one round, all parts together.
SIZES: Final = (64 * 1024, 256 * 1024, 1024 * 1024)
# A round is limited by its bytes if it takes this many times as long as an empty one, plus JITTER (seconds: that of two
# hosts). A difference shorter than JITTER measures nothing: the rate is then what JITTER gives, or more.
LONGER: Final = 2.0
JITTER: Final = 0.002
_RECORD: Final = struct.Struct("<d")


def probe_bandwidth(pipeline: Pipeline, world_size: int) -> float:
    """Bytes per second that the slowest rank sends; the same number on every rank."""
    rounds = _ProbeRounds(pipeline, world_size)
    rounds.run(0)
    rounds.run(0)
    latency = min(rounds.run(0), rounds.run(SIZES[0]))  # each returns the time of the round before it
    sent = SIZES[0]
    for size in SIZES[1:]:
        took = rounds.run(size)
        sent = size
        if took > LONGER * latency + JITTER:
            break
    return sent / max(rounds.run(0) - latency, JITTER)


def probe_shared_uplink(pipeline: Pipeline, world_size: int, everyone: Pipeline, ranks: int) -> float:
    """As `probe_bandwidth`, where several groups of ranks share an uplink: `everyone` are the ranks of all of them.
    They begin together, so that each sees its share, and the least rate counts for all."""
    rounds = _ProbeRounds(everyone, ranks)
    rounds.run(0)
    return min(rounds.gather(probe_bandwidth(pipeline, world_size)))


class _ProbeRounds:
    """Records from every rank to every other over one lane."""

    def __init__(self, pipeline: Pipeline, world_size: int) -> None:
        self._pipeline, self._world_size = pipeline, world_size
        self._seconds = 0.0

    def run(self, size: int) -> float:
        """Send `size` bytes to the others; the seconds that the previous round took on the slowest rank."""
        return max(self.gather(self._seconds, size))

    def gather(self, value: float, size: int = 0) -> list[float]:
        """Send `size` bytes that begin with a number to the others; everybody's numbers."""
        part = max(_RECORD.size, size // (self._world_size - 1))
        row = _RECORD.pack(value).ljust(part, b"\0")
        send = torch.frombuffer(bytearray(row * self._world_size), dtype=torch.uint8)
        receive = torch.empty_like(send)

        def ops() -> Iterator[Op]:
            yield AllToAll(send, receive)

        try:
            self._pipeline.run(ops(), self._record_time)
        except Exception as error:
            raise LinkError(f"startup probe: {error}") from error
        rows = bytes(receive.numpy())
        reports: list[float] = [_RECORD.unpack_from(rows, part * rank)[0] for rank in range(self._world_size)]
        if not all(math.isfinite(reported) and reported >= 0 for reported in reports):
            raise LinkError("startup probe: a rank's record cannot be read; does every rank run the same gradwire?")
        return reports

    def _record_time(self, timing: Timing) -> None:
        self._seconds = timing.finished - timing.started
