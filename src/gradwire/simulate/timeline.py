"""Timeline: one step of all ranks in virtual time. What was exchanged in, the step's end and every rank's facts out.

    ready      buckets become ready during backward, the last two thirds of compute, in proportion to their size
    encoded    one encoder, first in, first out; half of a level's work is encoding, half is decoding, and a bucket that
               is part of a later one's exchange is decoded with it
    operation  starts when the chunk's last one has ended on this rank; the network's model says when it ends
    restored   the last operation's end, and decoding

Ranks compute at slightly different speed, so operations also wait for the last rank, as real ones do. With local steps
(`step_alone`, `end_round`) ranks compute without waiting for each other, and all buckets are ready when a rank has made
the last step of the round.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gradwire.decide.ladder import LADDER
from gradwire.level import Level
from gradwire.sense.estimator import StepObservation
from gradwire.sense.step_timer import union
from gradwire.simulate.transfer import NetworkTimes
from gradwire.simulate.workers import BucketTraffic
from gradwire.types import StepFacts

# Share of a step's compute before the gradient's first bucket can be ready.
FORWARD: Final = 1 / 3
# Deviation of a rank's compute time from step to step, as a share; a quiet machine has a few per cent.
JITTER: Final = 0.02


@dataclass(frozen=True, slots=True)
class SimulatedStepTimes:
    """When the step ended, and what each rank measured; ranks' clocks agree."""

    end: float
    observations: tuple[StepObservation, ...]


@dataclass(slots=True)
class Timeline:
    """Virtual time of a job on one network; `work_scale` as in the cost model."""

    times: NetworkTimes
    compute: float
    rng: random.Random
    work_scale: float = 1.0
    now: float = 0.0
    # What each rank has computed since the last end of a round.
    _alone: list[float] = field(default_factory=list)

    def step(self, traffic: Sequence[BucketTraffic], level: Level, hops: int) -> SimulatedStepTimes:
        """Advance by one step."""
        total = sum(one.bucket.numel for one in traffic)
        shares, done = [], 0
        for one in traffic:
            done += one.bucket.numel
            shares.append(FORWARD + (1 - FORWARD) * done / total)
        return self._advance(self._computes(), shares, traffic, level, hops)

    def step_alone(self) -> float:
        """One local step of every rank; when the slowest one has made it. The clock advances with the round's end."""
        so_far = self._alone or [0.0] * self.times.world_size
        self._alone = [before + own for before, own in zip(so_far, self._computes(), strict=True)]
        return self.now + max(self._alone)

    def end_round(self, traffic: Sequence[BucketTraffic], level: Level, hops: int) -> SimulatedStepTimes:
        """Advance by the round: its steps, and the exchange of the weights."""
        computes, self._alone = self._alone, []
        return self._advance(computes, [1.0] * len(traffic), traffic, level, hops)

    def _computes(self) -> list[float]:
        return [self.compute * self.rng.lognormvariate(0.0, JITTER) for _ in range(self.times.world_size)]

    def _advance(
        self, computes: list[float], shares: list[float], traffic: Sequence[BucketTraffic], level: Level, hops: int
    ) -> SimulatedStepTimes:
        """`computes` are the ranks' seconds; buckets are ready at `shares` of them."""
        began, latest = self.now, max(computes)
        intervals, restored, wire_bytes, work = self._exchange(traffic, level, began, [latest * s for s in shares])
        end = max(restored, began + latest)
        observations = []
        for mine in computes:
            ready = [began + mine * share for share in shares]
            own = [(min(first, ready[index]), last) for index, first, last in intervals]
            facts = StepFacts(
                seconds=end - began,
                exposed=max(0.0, end - ready[-1]),
                busy=union(own),
                wire_bytes=wire_bytes,
                hops=hops,
                work=work,
                span=ready[-1] - ready[0],
                buckets=tuple((at - ready[0], one.bucket.nbytes) for at, one in zip(ready, traffic, strict=True)),
                level=level,
            )
            observations.append(StepObservation(facts, ready[-1]))
        self.now = end
        return SimulatedStepTimes(end, tuple(observations))

    def _exchange(
        self, traffic: Sequence[BucketTraffic], level: Level, began: float, ready: list[float]
    ) -> tuple[list[tuple[int, float, float]], float, int, float]:
        """Intervals (bucket, start, end) of operations, when all is restored, bytes per rank, seconds of work."""
        per_element = work_per_element(level) * 1e-9 * self.work_scale / 2
        queue: list[tuple[float, int, int, int, int]] = []
        encoder, held = began, 0
        decoding: list[float] = []
        for index, one in enumerate(traffic):
            each = per_element * one.bucket.numel / max(len(one.chunks), 1)
            decoding.append(each + per_element * held)
            held = held + one.bucket.numel if one.held else 0
            if one.held:
                encoder = max(encoder, began + ready[index]) + each
            for chunk, _ in enumerate(one.chunks):
                encoder = max(encoder, began + ready[index]) + each
                heapq.heappush(queue, (encoder, index, chunk, 0, 0))
        intervals: list[tuple[int, float, float]] = []
        restored, sent = began, 0
        while queue:
            start, index, chunk, turn, _ = heapq.heappop(queue)
            ops = traffic[index].chunks[chunk]
            if turn == len(ops):
                restored = max(restored, start + decoding[index])
                continue
            op = ops[turn]
            end = self.times.operate(op.kind, start, op.nbytes)
            sent += self.times.sent_by_rank(op.kind, op.nbytes)
            intervals.append((index, start, end))
            heapq.heappush(queue, (end, index, chunk, turn + 1, 0))
        work = 2 * per_element * sum(one.bucket.numel for one in traffic)
        return intervals, restored, sent, work


def work_per_element(level: Level) -> float:
    """Nanoseconds of encoding and decoding per element: the ladder's, of the most similar rung."""
    if level.off:
        return 0.0
    dense = level.select == "all"
    alike = [
        rung
        for rung in LADDER
        if rung.level.select == level.select and not rung.level.off and (not dense or rung.level.values == level.values)
    ]
    alike = alike or [rung for rung in LADDER if rung.level.sparse]
    return min(alike, key=lambda rung: (abs(rung.level.ratio - level.ratio), abs(rung.level.rank - level.rank))).work
