"""AdaptiveGovernor: lets rank 0 choose level and transport, and all ranks change to them at the same step.

Ranks exchange pulses. At the first bucket of step k every rank

    1. computes its facts of step k - 1
    2. waits for the pulses that were sent at step k - 1, and for the decision that is in force now
    3. sends a pulse to every other rank, with these facts

Ranks are those that exchange gradients or, with a sharded model, those of all shards: the shards of a site share its
uplink, so one controller decides for all of them (`GovernorContext.deciding`).

When the others' pulses have arrived, on the pulses' own threads, while training continues,

    4. every rank reports step k - 1; rank 0 updates its View with what all ranks measured, decides
       (runtime/transport_decider.py), and sends its decision to all ranks at once

So a change of the network in step s is decided on during s + 1 and in force at s + 2 on every rank. Where a decision
would not arrive before the next step begins, it is in force at s + 3: what is in force at a step is the decision that
was made `delay` steps before, and decisions name the delay of those after them (decide/decision_timing.py). Pulses have
a whole step to arrive; waiting for a late one keeps ranks from using different levels. The waits have a deadline.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gradwire.decide.base import Controller, Job, alike, same_job
from gradwire.decide.bucket_advice import advise
from gradwire.decide.cost_model import predict
from gradwire.decide.decision_timing import SAFE, DecisionTiming
from gradwire.decide.ladder import LADDER
from gradwire.decide.period_controller import PeriodController
from gradwire.decide.transport_choice import TransportChooser
from gradwire.events import Advised, Faulted, Sensed
from gradwire.level import Level
from gradwire.runtime.ack_source import AckSource
from gradwire.runtime.event_reporter import EventReporter
from gradwire.runtime.governor import GovernorContext, merge
from gradwire.runtime.guard_reporter import GuardReporter
from gradwire.runtime.pipeline import Pipeline
from gradwire.runtime.pulse_exchange import PulseRound, RankReport
from gradwire.runtime.route_planner import RoutePlanner
from gradwire.runtime.transport_decider import CarriedStep, TransportDecider
from gradwire.runtime.transport_switch import TransportSwitch
from gradwire.sense.ack_stats import AckedTotals, restarts
from gradwire.sense.clock_sync import ClockSync
from gradwire.sense.estimator import StepObservation
from gradwire.sense.peer_links import PeerLinks
from gradwire.sense.pulse import Pulse, Stamps, pack
from gradwire.sense.stragglers import StragglerDetector
from gradwire.sense.transport_sensing import TransportSensing
from gradwire.transport.traffic import Trips
from gradwire.types import Bucket, Decision, LinkFacts, LinkView, Readiness, StepFacts, TransportKind, View
from gradwire.units import Seconds

# By this step buckets have their final layout and the estimates are stable; bucket advice is given at powers of two.
SETTLED = 16


@dataclass(frozen=True, slots=True)
class OpenChoice:
    """What is left to gradwire: `chooser` decides where there is another transport, `routes` predicts what trees would
    take where those are one; both on rank 0."""

    chooser: TransportChooser | None = None
    routes: RoutePlanner | None = None


class AdaptiveGovernor:
    """Pulses, a View and, on rank 0, a controller. `pipeline` has PULSE_LANES lanes, for pulses and decisions alone;
    `acks` are those of the first transport, and of others that the kernel's TCP carries."""

    def __init__(
        self,
        context: GovernorContext,
        controller: Controller,
        start: Decision,
        pipeline: Pipeline,
        transports: TransportSwitch,
        acks: AckSource | None = None,
        choice: OpenChoice | None = None,
    ) -> None:
        self._context = context
        self._controller = controller
        self._pipeline = pipeline
        self._transports = transports
        self._acks = acks or AckSource()
        choice = choice or OpenChoice()
        self._routes = choice.routes
        self._peer_links = PeerLinks()
        self._decider = TransportDecider(controller, choice.chooser, context.sink, choice.routes)
        self._sensing: dict[TransportKind, TransportSensing] = {}
        self._stragglers = StragglerDetector()
        self._guard_reporter = GuardReporter(context.sink, context.unit)
        self._ranks = context.deciding
        self._peers = {peer: ClockSync() for peer in range(self._ranks.size) if peer != self._ranks.rank}
        self._buckets: dict[int, Bucket] = {}
        self._job: Job | None = None
        self._most_hops: tuple[tuple[Level, int], tuple[Bucket, ...], int] | None = None
        self._last_facts: StepFacts | None = None
        self._ready = 0.0
        self._timing = DecisionTiming()
        # Those of the last steps, as many as a decision may be delayed.
        self._rounds: deque[PulseRound] = deque(maxlen=SAFE)
        self._late = 0.0
        self._pulses_sent = self._step = 0
        self._next_decision = start
        self.decision = start
        self.view = View.unknown()
        self.loss = 0.0

    def begin_step(self, bucket: Bucket) -> None:
        """May block until the pulses of the step before, and the decision of this one, have arrived."""
        step, now = bucket.step, self._context.clock.now()
        self._step = step
        self._last_facts = self._context.lap(now, self._hops, self._take_loss())  # 1
        ended = self.decision
        if self._rounds:
            self._rounds[-1].needed = now
            self._wait(step)  # 2
            self._context.traffic.step_ended(step - 1, self._trips)
        acks = self._transports.current.acks or self._acks
        if self._transports.opener is not None:
            self._transports.follow(self.decision.transport, self.decision.prepare, step)
        self._rounds.append(self._send(step, ended, acks))  # 3
        self._buckets[bucket.index] = bucket
        self._ready = now

    def resume_period(self, sync_every: int) -> None:
        """A state was loaded: continue with as many local steps a round as it had, until the controller decides."""
        self.decision = replace(self.decision, sync_every=sync_every)
        self._next_decision = replace(self._next_decision, sync_every=sync_every)
        if isinstance(self._controller, PeriodController):
            self._controller.resume(self.decision.level, sync_every)

    def add_bucket(self, bucket: Bucket) -> None:
        self._buckets[bucket.index] = bucket
        self._ready = self._context.clock.now()

    def finish(self) -> None:
        last_round = self._rounds[-1] if self._rounds else None
        self._rounds.clear()
        if last_round is not None and last_round.cancel():
            self._context.report_step(last_round.step - 1, last_round.facts, last_round.level)
        if last_round is not None and last_round.step < self._step:
            # The round before failed, so no pulse was sent at this step.
            self._context.report_step(self._step - 1, self._last_facts, self.decision.level)
        facts = self._context.timer.finish(self._hops, self._take_loss())
        self._context.report_step(self._step, facts, self.decision.level)
        self._context.traffic.finish(self._step, self._trips)

    def close(self) -> None:
        if self._routes is not None:
            self._routes.close()
        self._pipeline.close()

    @property
    def _hops(self) -> int:
        """The most latencies in a row of any bucket of this step."""
        level, buckets = self.decision.level, tuple(self._buckets.values())
        known, key = self._most_hops, (level, self._context.plan_version())
        if known is None or known[0] != key or not alike(known[1], buckets):
            hops = max((one.hops for one in self._context.footprint(level, buckets)), default=0)
            known = self._most_hops = key, buckets, hops
        return known[2]

    def _take_loss(self) -> float:
        """The loss that the user noted; each note counts for one step."""
        loss, self.loss = self.loss, 0.0
        return loss

    def _trips(self) -> Trips:
        paths = ((peer, self._peers.get(peer)) for peer in self._ranks.exchanging)
        return {peer: (path.last, path.rtprop) for peer, path in paths if path is not None}

    def _by_job_rank(self, links: dict[int, LinkView]) -> dict[int, LinkView]:
        """Links are numbered by the group that exchanges gradients."""
        if self._context.job_ranks is None:
            return links
        return {self._ranks.exchanging[peer]: link for peer, link in links.items()}

    def _wait(self, step: int) -> None:
        """Wait for the decision that is in force from now on, and for the pulses of the step before."""
        context, decision, late = self._context, self.decision, self._late
        with EventReporter(context.sink, context.clock, context.explain).reporting(step):
            if len(self._rounds) >= decision.delay:
                decided = self._rounds[-decision.delay]
                decision, late = decided.decision(), decided.late
            self._rounds[-1].pulses()
        self.decision, self._late = decision, late

    def _send(self, step: int, ended: Decision, acks: AckSource) -> PulseRound:
        """`ended` and `acks` are those of the step before."""
        self._pulses_sent += 1
        last = self._rounds[-1] if self._rounds else None
        report = RankReport(ended, self._last_facts, self._ready)
        sensing = self._sensed_over(ended.transport)
        number, ranks, late = self._pulses_sent, self._ranks, self._late
        buckets = tuple(bucket for _, bucket in sorted(self._buckets.items()))
        self._buckets = {}
        pulse_round = PulseRound(step, report, buckets, self._on_pulses)

        def rows() -> list[bytes]:
            """Runs on the lane's thread: a query to a wire waits for the wire's thread, and training must not."""
            links, busy = acks.links(), report.facts.busy if report.facts is not None else 0.0
            moved = acks.moved()
            pulse_round.acks = sensing.meter.take(links, moved, busy, in_turns=acks.in_turns)
            link = self._note_links(links, moved, acks, number)
            # Links that are numbered by connection and not by rank are part of the summary only.
            pulse_round.links = {} if acks.in_turns else self._by_job_rank(links)
            readiness = self._transports.report()
            pulse_round.sent = self._context.clock.now()
            pulses = []
            for peer in range(ranks.size):
                stamps = Stamps(pulse_round.sent, report.ready)
                if last is not None and peer in last.arrivals:
                    stamps = replace(stamps, echo=last.sent, arrived=last.arrivals[peer])
                pulse = Pulse(number, report.facts, stamps, pulse_round.acks, readiness, link, late)
                pulses.append(pack(pulse))
            return pulses

        pulse_round.begin(self._pipeline, rows, ranks.rank, ranks.size)
        return pulse_round

    def _note_links(
        self, links: dict[int, LinkView], moved: dict[int, AckedTotals], acks: AckSource, number: int
    ) -> LinkFacts:
        """What this pulse reports: one of the links, in turn. Rank 0 knows its own without a report."""
        if self._routes is None:
            return LinkFacts()
        own, world_size = self._context.rank, self._context.world_size
        ranks = acks.ranks() if acks.ranks is not None else None
        self._peer_links.take(links, moved, self._context.clock.now(), ranks)
        facts = {peer: self._peer_links.facts(peer, path.rtprop) for peer, path in self._peers.items()}
        if own == 0:
            for one in facts.values():
                self._routes.learn(own, one)
        return facts.get((own + number) % world_size, LinkFacts())

    def _on_pulses(self, pulse_round: PulseRound, pulses: dict[int, Pulse]) -> Decision:  # 4
        for peer, pulse in pulses.items():
            stamps = pulse.stamps
            if stamps.echo and peer in pulse_round.arrivals:
                self._peers[peer].take(stamps.echo, stamps.arrived, stamps.sent, pulse_round.arrivals[peer])
        ready = self._ready_elsewhere(pulses)
        late = pulse_round.lateness(ready)
        self._context.report_step(pulse_round.step - 1, pulse_round.facts, pulse_round.level, late)
        if self._ranks.rank:
            return self._next_decision
        if self._routes is not None:
            for peer, pulse in pulses.items():
                self._routes.learn(peer, pulse.link)
        now = self._context.clock.now()
        facts = self._update_view(pulse_round, pulses, ready, now)
        if facts is not None:
            ranks = [self._transports.readiness, *(pulse.readiness for pulse in pulses.values())]
            self._decide(pulse_round, facts, ranks, now)
            self._report_straggler(pulse_round, ready, now)
        delay = self._timing.take(pulse.late for pulse in pulses.values())
        self._next_decision = replace(self._next_decision, delay=delay)
        return self._next_decision

    def _ready_elsewhere(self, pulses: dict[int, Pulse]) -> dict[int, float]:
        """When the others had their gradients ready, on this rank's clock, where the clock offset is known."""
        known = ((peer, self._peers[peer], pulse) for peer, pulse in pulses.items())
        return {peer: pulse.stamps.ready - path.offset for peer, path, pulse in known if path.last is not None}

    def _update_view(
        self, pulse_round: PulseRound, pulses: dict[int, Pulse], ready: dict[int, float], now: float
    ) -> StepFacts | None:
        """Estimate the network from what all ranks measured; the job's step, where this rank measured it."""
        observed = [StepObservation(p.facts, ready.get(peer)) for peer, p in pulses.items() if p.facts is not None]
        if pulse_round.facts is not None:
            observed.append(StepObservation(pulse_round.facts, pulse_round.ready))
        sensing = self._sensed_over(pulse_round.transport)
        view = sensing.estimator.update(observed, list(self._peers.values()), now)
        acks = [pulse_round.acks, *(pulse.acks for pulse in pulses.values())]
        self.view = sensing.stats.update(view, self._ranks.rank, pulse_round.links, acks, now)
        sensing.estimator.slow_start = restarts(acks)
        if pulse_round.facts is None:
            return None
        return replace(merge([seen.facts for seen in observed], pulse_round.facts), level=pulse_round.level)

    def _sensed_over(self, transport: TransportKind) -> TransportSensing:
        return self._sensing.setdefault(transport, TransportSensing())

    def _decide(self, pulse_round: PulseRound, facts: StepFacts, ranks: Sequence[Readiness], now: float) -> None:
        context, step = self._context, pulse_round.step
        job = Job(context.world_size, pulse_round.buckets, context.footprint, context.plan_version())
        job = self._job = same_job(self._job, job)
        plain = predict(LADDER[0], job, self.view, facts, pulse_round.level, scale=1.0)
        carried = CarriedStep(step, now, job, facts, self.view, pulse_round.transport)
        self._next_decision = self._decider.decide(carried, self._next_decision, ranks)
        self._guard_reporter.report(now, step, self._next_decision)
        known = self.view.group.bandwidth is not None
        context.sink.emit(Sensed.of(now, step, self.view, facts, plain.step if known else None))
        if step >= SETTLED and step & (step - 1) == 0:
            self._advise(step, facts, now)

    def _report_straggler(self, pulse_round: PulseRound, ready: dict[int, float], now: float) -> None:
        assert pulse_round.facts is not None
        all_ready = {self._ranks.rank: pulse_round.ready, **ready}
        found = self._stragglers.detect(all_ready, pulse_round.facts.seconds, now)
        if found is not None:
            rank, late = found
            text = f"rank {rank} had its gradient ready {Seconds(late)} after the others"
            self._context.sink.emit(Faulted(now, pulse_round.step - 1, "late_rank", text, rank))

    def _advise(self, step: int, facts: StepFacts, now: float) -> None:
        """Advise another bucket size, where it would hide more of the exchange at the level in use."""
        link, gradient = self.view.group, sum(nbytes for _, nbytes in facts.buckets)
        if link.bandwidth is None or not facts.wire_bytes:
            return
        rate = link.bandwidth * gradient / facts.wire_bytes
        latency = max(facts.hops * (link.rtprop or 0.0) / 2, link.overhead)
        advice = advise(facts.buckets, rate, latency, facts.seconds)
        if advice is not None:
            self._context.sink.emit(Advised(now, step, advice.bucket_cap_mb, advice.gain))
