"""Govern: which level all ranks use at a step, and how they come to agree on it without waiting.

A fixed level needs no words. An adaptive one goes by pulses. At the first bucket of step k every rank

    1. sums up step k - 1
    2. makes sure that the pulses sent at step k - 1 were heard and adopts rank 0's decision from them
    3. sends a pulse to every other rank, with its facts of step k - 1 and (rank 0) its next decision

and when the others' pulses have come, in the pulses' own thread, while training goes on,

    4. (rank 0) updates its View with what all ranks measured, and asks the controller for the next decision

So a change of the network in step s is decided upon during s + 1 and in force at s + 3 on every rank. The pulses have
had a whole step to arrive; waiting for one that has not is what keeps ranks from ever disagreeing on a payload's form,
and it has a deadline like every other operation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from gradwire.clock import Clock
from gradwire.compress.build import check_chain
from gradwire.decide.base import Controller, Job, alike, same_job
from gradwire.decide.bucket_advice import advise
from gradwire.decide.cost_model import predict
from gradwire.decide.fixed import Fixed
from gradwire.decide.ladder import LADDER
from gradwire.errors import LinkError
from gradwire.events import Advised, Faulted, Sensed, Sink, Stepped
from gradwire.level import Level
from gradwire.runtime.bucket_work import EventReporter, Explain, as_it_is
from gradwire.runtime.pipeline import Pipeline
from gradwire.runtime.pulse_exchange import PulseRound, RankReport
from gradwire.sense.ack_stats import AckStats, Meter, Moved
from gradwire.sense.clock_sync import ClockSync
from gradwire.sense.estimator import Estimator, StepObservation
from gradwire.sense.pulse import Pulse, Stamps, pack
from gradwire.sense.step_timer import StepTimer
from gradwire.sense.stragglers import StragglerDetector
from gradwire.transport.traffic import Traffic, Trips
from gradwire.types import Bucket, Decision, Footprint, LinkView, StepFacts, View
from gradwire.units import Seconds

# Buckets have their final layout and the estimates have settled by this step; advice is thought over at powers of two.
SETTLED = 16

FootprintOf = Callable[[Level, Bucket], Footprint]
# What the transport's acknowledgements say of each link, and what moved over it; nothing where there are none.
Heard = tuple[Callable[[], dict[int, LinkView]], Callable[[], dict[int, Moved]]]


class Governor(Protocol):
    """Answers for every bucket; the answer may change at a step's first bucket only."""

    def decide(self, bucket: Bucket) -> Decision: ...

    def finish(self) -> None:
        """No step follows: tell of those that were not told yet. Waits for nobody."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Instruments:
    """What a governor reads and whom it tells."""

    stopwatch: StepTimer
    clock: Clock
    sink: Sink
    traffic: Traffic
    explained: Explain = as_it_is
    # The version of the plan in force, on which footprints depend.
    plan_version: Callable[[], int] = lambda: 0


class FixedGovernor:
    """A fixed level: every rank knows it. Only tells what the steps took."""

    def __init__(self, fixed: Fixed, world_size: int, instruments: Instruments) -> None:
        self._fixed, self._world_size = fixed, world_size
        self._instruments = instruments
        self._level = Level()
        self._step = 0

    def decide(self, bucket: Bucket) -> Decision:
        if bucket.index == 0:
            self._turn(bucket.step)
        decision = self._fixed.at(bucket.step)
        self._level = decision.level
        return decision

    def finish(self) -> None:
        self._tell(self._step, self._instruments.stopwatch.finish(0))
        self._instruments.traffic.finish(self._step)

    def _turn(self, step: int) -> None:
        self._tell(step - 1, self._instruments.stopwatch.lap(self._instruments.clock.now(), 0))
        self._instruments.traffic.ended(step - 1)
        self._step = step

    def _tell(self, step: int, facts: StepFacts | None) -> None:
        if facts is not None:
            now = self._instruments.clock.now()
            self._instruments.sink.emit(Stepped.of(now, step, facts, str(self._level), self._world_size))

    def close(self) -> None:
        """Nothing is held."""


class AdaptiveGovernor:
    """Pulses, a View and, on rank 0, a controller."""

    def __init__(
        self,
        rank: int,
        controller: Controller,
        start: Decision,
        line: Pipeline,
        parts: tuple[Instruments, FootprintOf],
        world_size: int,
        heard: Heard = (dict, dict),
    ) -> None:
        self._rank, self._world_size = rank, world_size
        self._links, self._moved = heard
        self._meter, self._acknowledged = Meter(), AckStats()
        self._controller = controller
        self._decision = self._wish = start
        self._line = line
        instruments, self._footprint = parts
        self._stopwatch, self._clock, self._sink = instruments.stopwatch, instruments.clock, instruments.sink
        self._traffic, self._explained = instruments.traffic, instruments.explained
        self._plan_version = instruments.plan_version
        self._lateness = StragglerDetector()
        self._estimator = Estimator()
        self._peers = {peer: ClockSync() for peer in range(world_size) if peer != rank}
        self._buckets: dict[int, Bucket] = {}
        self._job: Job | None = None
        self._most_hops: tuple[tuple[Level, int], tuple[Bucket, ...], int] | None = None
        self._own: StepFacts | None = None
        self._ready = 0.0
        self._round: PulseRound | None = None
        self._number = self._step = 0
        self.view = View.unknown()
        self.loss = 0.0

    def decide(self, bucket: Bucket) -> Decision:
        now = self._clock.now()
        if bucket.index == 0:
            self._turn(bucket.step, now)
        self._buckets[bucket.index] = bucket
        self._ready = now
        return self._decision

    def finish(self) -> None:
        exchange, self._round = self._round, None
        if exchange is not None and exchange.give_up() and exchange.facts is not None:
            self._tell_step(exchange.step - 1, exchange.facts, str(exchange.level))
        if exchange is not None and exchange.step < self._step and self._own is not None:
            # The pulse before failed, so this step's was never sent.
            self._tell_step(self._step - 1, self._own, str(self._decision.level))
        last = self._stopwatch.finish(self._hops, self._take_note())
        if last is not None:
            self._tell_step(self._step, last, str(self._decision.level))
        self._traffic.finish(self._step, self._trips)

    def close(self) -> None:
        self._line.close()

    @property
    def _hops(self) -> int:
        """The most latencies in a row of any bucket of this step."""
        level, buckets = self._decision.level, tuple(self._buckets.values())
        known, key = self._most_hops, (level, self._plan_version())
        if known is None or known[0] != key or not alike(known[1], buckets):
            hops = max((self._footprint(level, bucket).hops for bucket in buckets), default=0)
            known = self._most_hops = key, buckets, hops
        return known[2]

    def _turn(self, step: int, now: float) -> None:
        self._step = step
        self._own = self._stopwatch.lap(now, self._hops, self._take_note())  # 1
        ended = self._decision.level
        if self._round is not None:
            pulses = self._heard(step, self._round)  # 2
            self._decision = pulses[0].decision if self._rank else self._round.wish
            self._traffic.ended(step - 1, self._trips)
        self._round = self._send(step, ended)  # 3

    def _take_note(self) -> float:
        """The loss, once for every time it was noted."""
        loss, self.loss = self.loss, 0.0
        return loss

    def _heard(self, step: int, exchange: PulseRound) -> dict[int, Pulse]:
        try:
            return exchange.result()
        except LinkError as error:
            failure = EventReporter(self._sink, self._clock, self._explained).failed(step, error)
            raise failure from failure.__cause__

    def _hear(self, exchange: PulseRound, pulses: dict[int, Pulse]) -> None:  # 4
        for peer, pulse in pulses.items():
            stamps = pulse.stamps
            if stamps.echo and peer in exchange.arrivals:
                self._peers[peer].take(stamps.echo, stamps.arrived, stamps.sent, exchange.arrivals[peer])
        step = exchange.step
        ready = self._ready_elsewhere(pulses)
        if exchange.facts is not None:
            late = exchange.lateness(ready)
            self._tell_step(step - 1, exchange.facts, str(exchange.level), late)
        if self._rank:
            return
        observations = [
            StepObservation(pulse.facts, ready.get(peer)) for peer, pulse in pulses.items() if pulse.facts is not None
        ]
        if exchange.facts is not None:
            observations.append(StepObservation(exchange.facts, exchange.ready))
        now = self._clock.now()
        view = self._estimator.update(observations, list(self._peers.values()), now)
        told = [exchange.acks, *(pulse.acks for pulse in pulses.values())]
        self.view = self._acknowledged.update(view, self._rank, exchange.links, told, now)
        if observations and exchange.facts is not None:
            facts = replace(merge([seen.facts for seen in observations], exchange.facts), level=exchange.level)
            job = Job(self._world_size, exchange.buckets, self._footprint, self._plan_version())
            job = self._job = same_job(self._job, job)
            plain = predict(LADDER[0], job, self.view, facts, exchange.level, scale=1.0)
            self._wish = sendable(self._controller.decide(job, self.view, facts, now))
            if self._wish.guarded:
                self._sink.emit(Faulted(now, step, "guard", self._wish.reason))
            self._judge_lateness(step, pulses, exchange, now)
            known = self.view.group.bandwidth is not None
            self._sink.emit(Sensed.of(now, step, self.view, facts, plain.step if known else None))
            if step >= SETTLED and step & (step - 1) == 0:
                self._advise(step, facts, now)

    def _advise(self, step: int, facts: StepFacts, now: float) -> None:
        """Now and then: would other buckets overlap more, at the level in use?"""
        link, gradient = self.view.group, sum(nbytes for _, nbytes in facts.buckets)
        if link.bandwidth is None or not facts.wire_bytes:
            return
        rate = link.bandwidth * gradient / facts.wire_bytes
        latency = max(facts.hops * (link.rtprop or 0.0) / 2, link.overhead)
        advice = advise(facts.buckets, rate, latency, facts.seconds)
        if advice is not None:
            self._sink.emit(Advised(now, step, advice.bucket_cap_mb, advice.gain))

    def _tell_step(self, step: int, facts: StepFacts, level: str, late: float = 0.0) -> None:
        self._sink.emit(Stepped.of(self._clock.now(), step, facts, level, self._world_size, late))

    def _trips(self) -> Trips:
        return {peer: (path.last, path.rtprop) for peer, path in self._peers.items()}

    def _ready_elsewhere(self, pulses: dict[int, Pulse]) -> dict[int, float]:
        """When the others had their gradients, on this rank's clock, as far as it is known."""
        known = ((peer, self._peers[peer], pulse) for peer, pulse in pulses.items())
        return {peer: pulse.stamps.ready - path.offset for peer, path, pulse in known if path.last is not None}

    def _judge_lateness(self, step: int, pulses: dict[int, Pulse], exchange: PulseRound, now: float) -> None:
        assert exchange.facts is not None
        ready = {self._rank: exchange.ready, **self._ready_elsewhere(pulses)}
        found = self._lateness.judge(ready, exchange.facts.seconds, now)
        if found is not None:
            rank, late = found
            text = f"rank {rank} had its gradient ready {Seconds(late)} after the others"
            self._sink.emit(Faulted(now, step - 1, "late_rank", text, rank))

    def _send(self, step: int, ended: Level) -> PulseRound:
        self._number += 1
        last = self._round
        number, own, wish, ready = self._number, self._own, self._wish, self._ready
        buckets = tuple(bucket for _, bucket in sorted(self._buckets.items()))
        self._buckets = {}
        exchange = PulseRound(step, RankReport(wish, ended, own, ready), buckets, self._hear)

        def rows() -> list[bytes]:
            """On the lane's thread: asking a wire waits for the wire's own, and training should not."""
            exchange.links = self._links()
            exchange.acks = self._meter.take(exchange.links, self._moved())
            exchange.sent = self._clock.now()
            told = []
            for peer in range(self._world_size):
                stamps = Stamps(exchange.sent, ready)
                if last is not None and peer in last.arrivals:
                    stamps = replace(stamps, echo=last.sent, arrived=last.arrivals[peer])
                told.append(pack(Pulse(number, own, stamps, wish, exchange.acks)))
            return told

        exchange.begin(self._line, rows, self._rank, self._world_size)
        return exchange


def sendable(decision: Decision) -> Decision:
    """A controller's decision as the other ranks will read it: its level goes over the wire as text, and a share that
    the text rounds must be rounded here too. ConfigError for a level that is none."""
    level = Level.parse(str(decision.level), setting="controller")
    check_chain(level, setting="controller")
    return replace(decision, level=level)


def merge(facts: list[StepFacts], own: StepFacts) -> StepFacts:
    """One step as the job saw it: its slowest compute, its longest step; bucket times and the loss are rank 0's."""
    seconds = max(fact.seconds for fact in facts)
    compute = max(fact.compute for fact in facts)
    return StepFacts(
        seconds=seconds,
        exposed=max(0.0, seconds - compute),
        busy=min(fact.busy for fact in facts),
        wire_bytes=max(fact.wire_bytes for fact in facts),
        hops=own.hops,
        work=max(fact.work for fact in facts),
        span=own.span,
        buckets=own.buckets,
        residual=max(fact.residual for fact in facts),
        loss=own.loss,
    )
