"""A first look: what the network carries, before the first step is sent.

What a step shows of the network is in force three steps later, and on a slow network those steps would be the slowest
of all. So ranks that will adapt exchange a little when they attach:

    1. nothing but a record from everyone to everyone, three times: the first gathers the ranks, the quicker of the
       others gives the latency
    2. ever larger parts, until bytes and not latency take the time, or enough went through; the rate is the last one's,
       by which TCP's window has had some time to open

Every record begins with what the round before it took its sender, so after each round all ranks know the slowest one's
time, and they stop together and get the same answer.
"""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Iterator
from typing import Final

import torch

from gradwire.errors import LinkError
from gradwire.runtime.pipeline import Pipeline
from gradwire.transport.lanes.base import AllToAll, Op, Timing

# What a rank sends in one round, all parts together.
SIZES: Final = (64 * 1024, 256 * 1024, 1024 * 1024)
# Bytes take the time of a round that is this much longer than one without any.
LONGER: Final = 2.0
JITTER: Final = 0.002
_RECORD: Final = struct.Struct("<d")


def first_look(line: Pipeline, world_size: int) -> float:
    """Bytes per second that the slowest rank sends; the same number on every rank."""
    rounds = _Rounds(line, world_size)
    rounds.run(0)
    rounds.run(0)
    latency = min(rounds.run(0), rounds.run(SIZES[0]))  # each tells what the one before it took
    sent = SIZES[0]
    for size in SIZES[1:]:
        took = rounds.run(size)
        sent = size
        if took > LONGER * latency + JITTER:
            break
    return sent / max(rounds.run(0) - latency, 1e-6)


class _Rounds:
    """Records from everyone to everyone over one lane."""

    def __init__(self, line: Pipeline, world_size: int) -> None:
        self._line, self._world_size = line, world_size
        self._took = 0.0

    def run(self, size: int) -> float:
        """Send `size` bytes to the others; what the round before took the slowest rank."""
        part = max(_RECORD.size, size // (self._world_size - 1))
        row = _RECORD.pack(self._took).ljust(part, b"\0")
        send = torch.frombuffer(bytearray(row * self._world_size), dtype=torch.uint8)
        receive = torch.empty_like(send)
        done, errors = threading.Event(), list[BaseException]()

        def ops() -> Iterator[Op]:
            yield AllToAll(send, receive)

        def finished(error: BaseException | None) -> None:
            errors.extend([error] if error else [])
            done.set()

        self._line.submit(ops(), finished, self._timed)
        done.wait()  # the lane's deadline ends it
        if errors:
            raise LinkError(f"first look at the network: {errors[0]}") from errors[0]
        rows = bytes(receive.numpy())
        told: list[float] = [_RECORD.unpack_from(rows, part * rank)[0] for rank in range(self._world_size)]
        if not all(math.isfinite(seconds) and seconds >= 0 for seconds in told):
            raise LinkError("first look at the network: a rank's record cannot be read; another gradwire version?")
        return max(told)

    def _timed(self, timing: Timing) -> None:
        self._took = timing.finished - timing.started
