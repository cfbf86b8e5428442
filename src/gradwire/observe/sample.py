"""Sample: a made-up run as a recording, from a seed and virtual time, for tests, demonstrations and the dashboard.

    python -m gradwire.observe.sample runs/sample --ranks 16 --seconds 3600

Three sites train while their wide-area link has good hours, congestion and one outage; the level follows. Nothing here
is a measurement: the sentences say so, and the run is called "sample".
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
    Sensed,
    Stepped,
    Transferred,
    TreeDrawn,
)
from gradwire.observe.files import PACKED, PLAIN, pack, segment_path
from gradwire.types import all_reduce_bytes

# A model of 11 million parameters whose step computes for 0.25 s; the run begins at a fixed second.
PARAMETERS: Final = 11_173_962
COMPUTE: Final = 0.25
WALL: Final = 1_750_000_000.0
# What the made-up levels send, relative to the gradient, and what encoding costs.
LEVELS: Final = {"off": (1.0, 0.0), "fp16": (0.5, 0.012), "int8": (0.26, 0.016), "topk:0.01+int8": (0.013, 0.021)}
SITES: Final = ("frankfurt", "oregon", "tokyo")


@dataclass(frozen=True, slots=True)
class SampleShape:
    """What a sample run is like."""

    ranks: int = 16
    seconds: float = 3600.0
    seed: int = 1
    ended: bool = True


@dataclass(slots=True)
class _SampleRun:
    """The run as it unfolds; everything random comes from one generator."""

    shape: SampleShape
    chance: random.Random
    at: float = 5_000.0
    step: int = 0
    level: str = "off"
    version: int = 0
    plan: int = 0
    rate: float = 0.0
    congested: float = 0.0
    lines: list[list[Event]] = field(default_factory=list)

    def tell(self, rank: int, event: Event) -> None:
        self.lines[rank].append(event)


def events(shape: SampleShape) -> list[list[Event]]:
    """Every rank's events, in order; the same for the same shape."""
    story = _SampleRun(shape, random.Random(shape.seed), lines=[[] for _ in range(shape.ranks)])
    _begin(story)
    start = story.at
    while story.at < start + shape.seconds:
        _advance(story, (story.at - start) / shape.seconds)
    if shape.ended:
        for rank in range(shape.ranks):
            story.tell(rank, Ended(story.at, story.step))
    return story.lines


def write(folder: Path, shape: SampleShape, *, packed: bool = True) -> Path:
    """The sample as a recording in `folder`, one segment a rank; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    encoder = msgspec.json.Encoder()
    for rank, told in enumerate(events(shape)):
        body = encoder.encode_lines(told)
        path = segment_path(folder, rank, 0, PACKED if packed else PLAIN)
        path.write_bytes(pack(body) if packed else body)
    return folder


def _site(story: _SampleRun, rank: int) -> str:
    return SITES[rank * len(SITES) // story.shape.ranks]


def _begin(story: _SampleRun) -> None:
    ranks, config = story.shape.ranks, {"level": "auto", "observe": {"verify": 0}}
    for rank in range(ranks):
        story.tell(rank, Opened(story.at, FORMAT, VERSION, rank, ranks, WALL, "sample"))
        host, site = f"host{rank}", _site(story, rank)
        story.tell(rank, Attached(story.at, rank, ranks, PARAMETERS, config, host, site, "0.1.0", "2.13.0"))
    _plan(story, "first plan of the sample")
    _decide(story, "off", "the network has not been measured yet")


def _advance(story: _SampleRun, done: float) -> None:
    """One step of the whole job."""
    story.step += 1
    story.congested = _congestion(done)
    story.rate = 125e6 * (1 - 0.93 * story.congested) * story.chance.uniform(0.93, 1.07)
    share, encoding = LEVELS[story.level]
    plain = all_reduce_bytes(4 * PARAMETERS, story.shape.ranks)
    sent = int(plain * share)
    late = story.chance.expovariate(1 / 0.004)
    wire = max(0.002, sent / story.rate - 0.6 * COMPUTE) + 0.02
    seconds = COMPUTE * story.chance.uniform(0.98, 1.03) + encoding / 2 + wire + late
    story.at += seconds
    waits = 0.0 if story.level == "off" else 0.4 + 0.3 * math.sin(story.step / 40)
    for rank in range(story.shape.ranks):
        own = late * story.chance.random()
        split = (seconds - encoding / 2 - wire - own, encoding / 2, wire, own)
        sizes = (4 * PARAMETERS, sent, plain)
        busy = sent / story.rate
        residual = waits if story.level != "off" else None
        story.tell(rank, Stepped(story.at, story.step, seconds, *split, *sizes, story.level, encoding, busy, residual))
    _network(story, seconds, wire, encoding, waits, plain)
    _choose(story)
    _incidents(story, done)
    if story.step % 50 == 0:
        epochs = story.step / 390
        accuracy = 0.93 * (1 - math.exp(-epochs / 3)) + story.chance.uniform(-0.004, 0.004)
        total = max(story.step, round(story.step / max(done, 1e-6)))
        loss = 2.3 * math.exp(-epochs / 3) + 0.1
        story.tell(0, Noted(story.at, story.step, loss, max(0.1, accuracy), epochs, total))


def _congestion(done: float) -> float:
    """0..1 over the run: calm, a long congestion, calm, a short hard one."""
    if 0.25 < done < 0.6:
        return 0.85
    return 0.98 if 0.8 < done < 0.86 else 0.1 * (1 + math.sin(done * 40)) / 2


def _network(story: _SampleRun, seconds: float, wire: float, encoding: float, residual: float, plain: int) -> None:
    queueing = 0.09 * story.congested
    predicted = COMPUTE + max(0.0, plain / story.rate - 0.6 * COMPUTE) + 0.02
    facts = (seconds, wire, seconds - wire, encoding, residual)
    estimate = Sensed(
        story.at,
        story.step,
        0.012,
        story.rate,
        queueing,
        wire,
        0.1 * wire,
        *facts,
        131e6,
        0.02 * story.congested,
        1.0,
        predicted,
    )
    story.tell(0, estimate)
    if story.step % 4:  # about once a second
        return
    for rank in range(story.shape.ranks):
        story.tell(rank, LinksSensed(story.at, story.step, tuple(_links(story, rank))))


def _links(story: _SampleRun, rank: int) -> Iterator[LinkSample]:
    for peer in range(story.shape.ranks):
        if peer == rank:
            continue
        near = _site(story, peer) == _site(story, rank)
        rate = 1.2e9 if near else story.rate * (0.7 + 0.3 * ((rank * 7 + peer * 3) % 5) / 5)
        rtt = 0.0004 if near else 0.012 + 0.03 * ((rank + peer) % 3) + 0.09 * story.congested
        loss = 0.0 if near else 0.02 * story.congested
        yield LinkSample(rank, peer, rate, rtt, 0.0004 if near else 0.012, loss, None, None, 0.2)


def _choose(story: _SampleRun) -> None:
    mbit = story.rate * 8 / 1e6
    wish = "off" if mbit > 850 else "int8" if mbit > 100 else "topk:0.01+int8"
    if wish != story.level and story.step % 5 == 0:
        _decide(story, wish, f"sample: the group moves {mbit:.0f} Mbit/s, so {wish} is quickest")


def _decide(story: _SampleRun, level: str, reason: str) -> None:
    story.level, story.version = level, story.version + 1
    for rank in range(story.shape.ranks):
        story.tell(rank, Decided(story.at, story.step, 0, level, reason, story.version))


def _plan(story: _SampleRun, reason: str) -> None:
    """Two trees with roots at different sites; shares and roots move with every version."""
    story.plan += 1
    ranks = story.shape.ranks
    trees = tuple(
        _tree(story, (story.plan + shift) % ranks, share) for shift, share in ((0, 0.6), (-(-ranks // 2), 0.4))
    )
    leaders = sorted({_leader(story, rank) for rank in range(ranks)})
    routes = (PlannedRoute((leaders[0], leaders[1], leaders[2]), side=True),) if len(leaders) == len(SITES) else ()
    story.tell(0, Planned(story.at, story.step, story.plan, "loadaware", reason, 0.21, trees, routes, 4_000_000))


def _leader(story: _SampleRun, rank: int) -> int:
    """The lowest rank of a rank's site."""
    return next(other for other in range(story.shape.ranks) if _site(story, other) == _site(story, rank))


def _tree(story: _SampleRun, root: int, share: float) -> TreeDrawn:
    """Ranks send to their site's leader, leaders to the root; the root speaks for its own site."""

    def leader(rank: int) -> int:
        return root if _site(story, rank) == _site(story, root) else _leader(story, rank)

    ranks = range(story.shape.ranks)
    return TreeDrawn(root, share, {rank: root if rank == leader(rank) else leader(rank) for rank in ranks})


def _incidents(story: _SampleRun, done: float) -> None:
    """Transfers cut short while congested; now and then a new plan, a fault, a NaN."""
    ranks = story.shape.ranks
    if story.step % 8 == 0:
        for rank in range(ranks):
            peer = (rank + 1) % ranks
            missing = int(4 * PARAMETERS * 0.004 * story.congested)
            closes = {"complete": 6, "threshold": 2} if missing else {"complete": 8}
            nbytes = int(4 * PARAMETERS * LEVELS[story.level][0])
            told = Transferred(story.at, story.step, peer, 8, nbytes, missing, missing, 0.05, closes, missing)
            story.tell(rank, told)
    if story.step % 900 == 0:
        _plan(story, "sample: the link between two sites changed by a third")
    if story.step % 1500 == 700:
        lost = ranks - 1
        story.tell(0, Faulted(story.at, story.step, "peer_lost", f"rank {lost} was silent for 15 s", lost))
        story.tell(0, Faulted(story.at + 0.1, story.step, "peer_back", f"rank {lost} came back", lost))
    if story.step % 2000 == 999:
        story.tell(1 % ranks, NonFinite(story.at, story.step, 0, 3))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a made-up recording.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=3600.0, help="virtual seconds")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(write(options.folder, SampleShape(options.ranks, options.seconds, options.seed)))


if __name__ == "__main__":
    main()
