"""Estimate: what a step of a described job would take at every level, over every transport, and with local steps. Pure.

In: parameters, compute, and a network of the job's ranks. Out: one `Estimate` for each option.

    1. the gradient is divided into DDP's buckets and gradwire's chunks; `exchange/select.py` says what each sends
    2. the timeline of virtual time (simulate/timeline.py) runs some steps of that traffic on the network
    3. a level's price in steps is `auto`'s assumption before it has seen a gradient (decide/price.py), that of local
       steps likewise (decide/period_price.py): what depends on the model is measured in the running job only

Low rank is left out: its size depends on the shapes of the parameters.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gradwire.compress.build import build_codec
from gradwire.decide.auto import AS_GOOD, EXTRA_STEPS
from gradwire.decide.ladder import LADDER
from gradwire.decide.period import PERIODS
from gradwire.decide.period_price import prior_price
from gradwire.decide.price import PriceList
from gradwire.exchange.chunk_layout import chunk_layout
from gradwire.exchange.select import FootprintTable
from gradwire.level import Level
from gradwire.network import Network
from gradwire.simulate.lockstep import Movement
from gradwire.simulate.timeline import Timeline
from gradwire.simulate.transfer import NetworkTimes
from gradwire.simulate.workers import BucketTraffic
from gradwire.types import FLAT_TRANSPORTS, Bucket, TransportKind, all_reduce_bytes

LEVELS: Final = tuple(rung.level for rung in LADDER if rung.level.select != "lowrank")
# The level of rounds of local steps: it costs next to nothing and sends a quarter of the bytes.
LOCAL_LEVEL: Final = Level(values="int8")
# Steps whose mean is reported, and steps before them in which windows open. Few where a step sends so much that one
# alone has thousands of round trips.
STEPS, OPENING = 16, 6
FEW_STEPS, FEW_OPENING = 3, 1
MUCH: Final = 2e8
MEGABYTE: Final = 1024 * 1024
CHUNK_MB: Final = 4.0


@dataclass(frozen=True, slots=True)
class DescribedJob:
    """`compute` is a step's seconds without the network; `adaptive`: the optimizer has second moments, as Adam."""

    parameters: int
    compute: float
    network: Network
    adaptive: bool = True
    bucket_mb: float = 25.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """One option: seconds of a training step, bytes that a rank sends for it, and how many times more steps training
    needs. `sync_every` is 1 for synchronous training."""

    level: str
    transport: TransportKind
    sync_every: int
    step: float
    wire_bytes: float
    price: float

    @property
    def to_accuracy(self) -> float:
        """Seconds per unit of training progress."""
        return self.step * self.price


def estimate(job: DescribedJob, periods: Sequence[int] = PERIODS, levels: Sequence[Level] = LEVELS) -> list[Estimate]:
    """Every synchronous option in the order of `levels`, then local steps. Of LEVELS, the first is plain DDP."""
    prices = PriceList(())
    prices.take(None, job.adaptive)
    found = [_synchronous(job, level, transport, prices.of(level)) for level in levels for transport in FLAT_TRANSPORTS]
    world = len(job.network.ranks)
    for every in periods:
        price = prior_price(every, world, job.adaptive) * prices.of(LOCAL_LEVEL)
        found += [_local(job, transport, every, price) for transport in FLAT_TRANSPORTS]
    return found


def chosen(options: Sequence[Estimate]) -> Estimate:
    """What `auto` would use: among synchronous levels that cost next to no steps the least lossy within a few per cent
    of the best, over the process group where that is as good."""
    allowed = [one for one in options if one.sync_every == 1 and one.price <= 1 + EXTRA_STEPS]
    least = min(one.to_accuracy for one in allowed)
    return next(one for one in allowed if one.to_accuracy <= (1 + AS_GOOD) * least)


def best_local(options: Sequence[Estimate]) -> Estimate | None:
    """The quickest option with local steps, where there is one."""
    return min((one for one in options if one.sync_every > 1), key=lambda one: one.to_accuracy, default=None)


def _synchronous(job: DescribedJob, level: Level, transport: TransportKind, price: float) -> Estimate:
    traffic, hops, sent = _traffic(job, level, transport)
    timeline = _timeline(job, transport)
    opening, steps = (FEW_OPENING, FEW_STEPS) if sent > MUCH else (OPENING, STEPS)
    ends = [timeline.step(traffic, level, hops).end for _ in range(opening + steps)]
    return Estimate(str(level), transport, 1, (ends[-1] - ends[opening - 1]) / steps, sent, price)


def _local(job: DescribedJob, transport: TransportKind, every: int, price: float) -> Estimate:
    traffic, hops, sent = _traffic(job, LOCAL_LEVEL, transport)
    timeline = _timeline(job, transport)
    ends = []
    for _ in range(FEW_OPENING + FEW_STEPS):
        for _ in range(every):
            timeline.step_alone()
        ends.append(timeline.end_round(traffic, LOCAL_LEVEL, hops).end)
    step = (ends[-1] - ends[FEW_OPENING - 1]) / (FEW_STEPS * every)
    return Estimate(str(LOCAL_LEVEL), transport, every, step, sent / every, price)


def _timeline(job: DescribedJob, transport: TransportKind) -> Timeline:
    return Timeline(NetworkTimes(job.network, transport), job.compute, random.Random(1))


def _traffic(job: DescribedJob, level: Level, transport: TransportKind) -> tuple[list[BucketTraffic], int, int]:
    """What a step's buckets move, the latencies in a row of one of them, and bytes per rank."""
    world = len(job.network.ranks)
    footprint = FootprintTable(world, own_wire=transport != "group")
    traffic, most_hops, sent = [], 0, 0
    for bucket in _buckets(job):
        layout = chunk_layout(bucket, None if level.off else build_codec(level), world, CHUNK_MB)
        chunks: list[tuple[Movement, ...]] = []
        for start, end in layout.chunks(bucket.numel):
            part = Bucket(bucket.index, 0, end - start, bucket.itemsize, (), bucket.is_last)
            one = footprint(level, (part,))[0]
            most_hops, sent = max(most_hops, one.hops), sent + one.wire_bytes
            if level.off and transport == "group":
                chunks.append((Movement("ring", all_reduce_bytes(part.nbytes, world) // (2 * (world - 1))),))
            else:
                chunks.append((Movement("direct", one.wire_bytes // (one.hops * (world - 1))),) * one.hops)
        traffic.append(BucketTraffic(bucket, tuple(chunks)))
    return traffic, most_hops, sent


def _buckets(job: DescribedJob) -> Iterator[Bucket]:
    """DDP's: the first has one megabyte."""
    start, cap, index = 0, MEGABYTE // 4, 0
    while start < job.parameters:
        numel = min(cap, job.parameters - start)
        start += numel
        yield Bucket(index, 0, numel, 4, (), start == job.parameters)
        index, cap = index + 1, max(1, round(job.bucket_mb * MEGABYTE / 4))
