"""Sample: writes an artificial run as a recording, from a seed and virtual time, for tests and demonstrations.

    python -m gradwire.observe.sample runs/sample --ranks 16 --seconds 3600

Three sites train while their wide-area link is free, congested, free and congested again; the level follows. Nothing
here is a measurement: the reasons say so, and the run is named "sample".
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from gradwire.events import (
    FORMAT,
    VERSION,
    Attached,
    Decided,
    Ended,
    Event,
    Faulted,
    LinkSample,
    LinksSensed,
    NonFinite,
    Noted,
    Opened,
    Planned,
    PlannedRoute,
    PlannedTree,
    Sensed,
    Stepped,
    Transferred,
    TransportChosen,
)
from gradwire.observe.files import PACKED, PLAIN, pack, segment_path
from gradwire.types import all_reduce_bytes

# A model of 11 million parameters whose step computes for 0.25 s; the run begins at a fixed second.
PARAMETERS: Final = 11_173_962
COMPUTE: Final = 0.25
WALL: Final = 1_750_000_000.0
# Bytes that each level sends, relative to the gradient, and seconds of encoding.
LEVELS: Final = {"off": (1.0, 0.0), "fp16": (0.5, 0.012), "int8": (0.26, 0.016), "topk:0.01+int8": (0.013, 0.021)}
SITES: Final = ("frankfurt", "oregon", "tokyo")


@dataclass(frozen=True, slots=True)
class SampleShape:
    """Size, length and seed of a sample run."""

    ranks: int = 16
    seconds: float = 3600.0
    seed: int = 1
    ended: bool = True


@dataclass(slots=True)
class _SampleRun:
    """The state of the generated run; everything random comes from one generator."""

    shape: SampleShape
    rng: random.Random
    at: float = 5_000.0
    step: int = 0
    level: str = "off"
    version: int = 0
    plan: int = 0
    rate: float = 0.0
    congested: float = 0.0
    lines: list[list[Event]] = field(default_factory=list)

    def record(self, rank: int, event: Event) -> None:
        self.lines[rank].append(event)


def events(shape: SampleShape) -> list[list[Event]]:
    """Every rank's events, in order; the same for the same shape."""
    run = _SampleRun(shape, random.Random(shape.seed), lines=[[] for _ in range(shape.ranks)])
    _begin(run)
    start = run.at
    while run.at < start + shape.seconds:
        _advance(run, (run.at - start) / shape.seconds)
    if shape.ended:
        for rank in range(shape.ranks):
            run.record(rank, Ended(run.at, run.step))
    return run.lines


def write(folder: Path, shape: SampleShape, *, packed: bool = True) -> Path:
    """Write the sample as a recording in `folder`, one segment per rank; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    encoder = msgspec.json.Encoder()
    for rank, recorded in enumerate(events(shape)):
        body = encoder.encode_lines(recorded)
        path = segment_path(folder, rank, 0, PACKED if packed else PLAIN)
        path.write_bytes(pack(body) if packed else body)
    return folder


def _site(run: _SampleRun, rank: int) -> str:
    return SITES[rank * len(SITES) // run.shape.ranks]


def _begin(run: _SampleRun) -> None:
    ranks, config = run.shape.ranks, {"level": "auto", "observe": {"verify": 0}}
    for rank in range(ranks):
        run.record(rank, Opened(run.at, FORMAT, VERSION, rank, ranks, WALL, "sample"))
        host, site = f"host{rank}", _site(run, rank)
        run.record(rank, Attached(run.at, rank, ranks, PARAMETERS, config, host, site, "0.1.0", "2.13.0"))
    _plan(run, "first plan of the sample")
    _decide(run, "off", "the network has not been measured yet")


def _advance(run: _SampleRun, done: float) -> None:
    """One step of the whole job."""
    run.step += 1
    run.congested = _congestion(done)
    run.rate = 125e6 * (1 - 0.93 * run.congested) * run.rng.uniform(0.93, 1.07)
    share, encoding = LEVELS[run.level]
    plain = all_reduce_bytes(4 * PARAMETERS, run.shape.ranks)
    sent = int(plain * share)
    late = run.rng.expovariate(1 / 0.004)
    wire = max(0.002, sent / run.rate - 0.6 * COMPUTE) + 0.02
    seconds = COMPUTE * run.rng.uniform(0.98, 1.03) + encoding / 2 + wire + late
    run.at += seconds
    waits = 0.0 if run.level == "off" else 0.4 + 0.3 * math.sin(run.step / 40)
    for rank in range(run.shape.ranks):
        own = late * run.rng.random()
        split = (seconds - encoding / 2 - wire - own, encoding / 2, wire, own)
        sizes = (4 * PARAMETERS, sent, plain)
        busy = sent / run.rate
        residual = waits if run.level != "off" else None
        run.record(rank, Stepped(run.at, run.step, seconds, *split, *sizes, run.level, encoding, busy, residual))
    _network(run, seconds, wire, encoding, waits, plain)
    _choose(run)
    _incidents(run, done)
    if run.step % 50 == 0:
        epochs = run.step / 390
        accuracy = 0.93 * (1 - math.exp(-epochs / 3)) + run.rng.uniform(-0.004, 0.004)
        total = max(run.step, round(run.step / max(done, 1e-6)))
        loss = 2.3 * math.exp(-epochs / 3) + 0.1
        run.record(0, Noted(run.at, run.step, loss, max(0.1, accuracy), epochs, total))


def _congestion(done: float) -> float:
    """Congestion from 0 to 1 over the run: free, long congestion, free, short severe congestion."""
    if 0.25 < done < 0.6:
        return 0.85
    return 0.98 if 0.8 < done < 0.86 else 0.1 * (1 + math.sin(done * 40)) / 2


def _network(run: _SampleRun, seconds: float, wire: float, encoding: float, residual: float, plain: int) -> None:
    queueing = 0.09 * run.congested
    predicted = COMPUTE + max(0.0, plain / run.rate - 0.6 * COMPUTE) + 0.02
    facts = (seconds, wire, seconds - wire, encoding, residual)
    estimate = Sensed(
        run.at,
        run.step,
        0.012,
        run.rate,
        queueing,
        wire,
        0.1 * wire,
        *facts,
        131e6,
        0.02 * run.congested,
        1.0,
        predicted,
    )
    run.record(0, estimate)
    if run.step % 4:  # about once a second
        return
    for rank in range(run.shape.ranks):
        run.record(rank, LinksSensed(run.at, run.step, tuple(_links(run, rank))))


def _links(run: _SampleRun, rank: int) -> Iterator[LinkSample]:
    for peer in range(run.shape.ranks):
        if peer == rank:
            continue
        near = _site(run, peer) == _site(run, rank)
        rate = 1.2e9 if near else run.rate * (0.7 + 0.3 * ((rank * 7 + peer * 3) % 5) / 5)
        rtt = 0.0004 if near else 0.012 + 0.03 * ((rank + peer) % 3) + 0.09 * run.congested
        loss = 0.0 if near else 0.02 * run.congested
        yield LinkSample(rank, peer, rate, rtt, 0.0004 if near else 0.012, loss, None, None, 0.2)


def _choose(run: _SampleRun) -> None:
    mbit = run.rate * 8 / 1e6
    wish = "off" if mbit > 850 else "int8" if mbit > 100 else "topk:0.01+int8"
    if wish != run.level and run.step % 5 == 0:
        _decide(run, wish, f"sample: the group moves {mbit:.0f} Mbit/s, so {wish} is quickest")


def _decide(run: _SampleRun, level: str, reason: str) -> None:
    run.level, run.version = level, run.version + 1
    for rank in range(run.shape.ranks):
        run.record(rank, Decided(run.at, run.step, 0, level, reason, run.version))


def _plan(run: _SampleRun, reason: str) -> None:
    """Two trees with roots at different sites; shares and roots change with every version."""
    run.plan += 1
    ranks = run.shape.ranks
    trees = tuple(_tree(run, (run.plan + shift) % ranks, share) for shift, share in ((0, 0.6), (-(-ranks // 2), 0.4)))
    leaders = sorted({_leader(run, rank) for rank in range(ranks)})
    routes = (PlannedRoute((leaders[0], leaders[1], leaders[2]), side=True),) if len(leaders) == len(SITES) else ()
    run.record(0, Planned(run.at, run.step, run.plan, "loadaware", reason, 0.21, trees, routes, 4_000_000))
    run.record(0, TransportChosen(run.at, run.step, "trees", "sample: 210 ms a step over trees, 330 ms over group"))


def _leader(run: _SampleRun, rank: int) -> int:
    """The lowest rank of a rank's site."""
    return next(other for other in range(run.shape.ranks) if _site(run, other) == _site(run, rank))


def _tree(run: _SampleRun, root: int, share: float) -> PlannedTree:
    """Ranks send to their site's leader, leaders to the root; the root is the leader of its own site."""

    def leader(rank: int) -> int:
        return root if _site(run, rank) == _site(run, root) else _leader(run, rank)

    ranks = range(run.shape.ranks)
    return PlannedTree(root, share, {rank: root if rank == leader(rank) else leader(rank) for rank in ranks})


def _incidents(run: _SampleRun, done: float) -> None:
    """Transfers, incomplete while congested; at intervals a new plan, a fault, a NaN."""
    ranks = run.shape.ranks
    if run.step % 8 == 0:
        for rank in range(ranks):
            peer = (rank + 1) % ranks
            missing = int(4 * PARAMETERS * 0.004 * run.congested)
            closes = {"complete": 6, "threshold": 2} if missing else {"complete": 8}
            nbytes = int(4 * PARAMETERS * LEVELS[run.level][0])
            event = Transferred(run.at, run.step, peer, 8, nbytes, missing, missing, 0.05, closes, missing)
            run.record(rank, event)
    if run.step % 900 == 0:
        _plan(run, "sample: the link between two sites changed by a third")
    if run.step % 1500 == 700:
        lost = ranks - 1
        run.record(0, Faulted(run.at, run.step, "peer_lost", f"rank {lost} was silent for 15 s", lost))
        run.record(0, Faulted(run.at + 0.1, run.step, "peer_back", f"rank {lost} rejoined", lost))
    if run.step % 2000 == 999:
        run.record(1 % ranks, NonFinite(run.at, run.step, 0, 3))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write an artificial recording.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=3600.0, help="virtual seconds")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(write(options.folder, SampleShape(options.ranks, options.seconds, options.seed)))


if __name__ == "__main__":
    main()
