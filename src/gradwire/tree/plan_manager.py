"""Steward: what a member does beside summing. Carries the policy's messages, reports links, and, while this member is
the coordinator, keeps what is known of the network and proposes better plans.

Runs on the walker's thread as a chore, except for planning itself, which takes long and has a thread of its own; its
result is picked up at the next chore. A new coordinator begins with what it measured itself and the reports to come.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch

from gradwire.errors import GradwireError, IntegrityError, LinkError
from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.membership.awareness import LEAST_BYTES, Awareness, LinkObservation
from gradwire.plan.membership.control_messages import Abort, ControlMessage, Fetch, LinkReport, Probe, StateOffer
from gradwire.plan.membership.messages import Leave
from gradwire.plan.membership.replan import ReplanConfig, Replanner
from gradwire.tree.control_channel import ControlChannel
from gradwire.tree.executor import TreeExecutor
from gradwire.tree.frame_header import PROBE
from gradwire.tree.frame_io import LostPeerError
from gradwire.tree.link_monitor import LinkMonitor
from gradwire.types import Plan

# Seconds between reports, between looks at the plan, and until an unused link is worth a probe again.
REPORT: Final = 1.0
LOOK: Final = 2.0
STALE: Final = 60.0
# Told by the coordinator: a plan came into force, and why it was made.
OnChange = Callable[[Plan, str], None]


@dataclass(frozen=True, slots=True)
class PlanManagerConfig:
    """`aware` re-plans by what is measured; `probe` measures links that carry nothing."""

    replan: ReplanConfig
    aware: bool = True
    probe: bool = True


class PlanManager:
    """One per walker."""

    def __init__(
        self,
        executor: TreeExecutor,
        job: ReductionJob,
        known: Matrix,
        config: PlanManagerConfig,
        on_change: OnChange = lambda plan, why: None,
    ) -> None:
        self._executor, self._member, self._job, self._config = executor, executor.member, job, config
        self._frame_io = executor.frame_io
        self.channel = ControlChannel(self._frame_io, self._on_message)
        self.link_monitor = LinkMonitor(self._member.rank, self._frame_io)
        self._awareness = Awareness()
        self._known = known
        self._on_change = on_change
        self._replanner: Replanner | None = None
        self._epoch = self._member.epoch
        self._new_plans: queue.SimpleQueue[tuple[int, Plan, str]] = queue.SimpleQueue()
        # The level that this member's controller wishes for, and why; where plans decide the level.
        self.level: tuple[str, str] = "", ""
        self._planning: threading.Thread | None = None
        self._reasons: dict[int, str] = {}
        self._reported = self._looked = 0.0
        self._probes = 0
        self._version = self._member.version
        executor.periodic.append(self.tick)
        executor.on_failure.append(self.abort)
        executor.on_reconnect = self.channel.restart
        self._catch_up = executor.catch_up
        if self._catch_up is not None:
            self._catch_up.send = self.channel.send

    def begin(self, now: float) -> None:
        """Before the walker starts: listen to everybody, take over what is known beforehand."""
        self.channel.listen(rank for rank in self._member.members if rank in self._member.reach)
        members = self._known.members
        for row, source in enumerate(members):
            for column, destination in enumerate(members):
                rate, trip = float(self._known.rate[row, column]), float(self._known.rtprop[row, column])
                if row != column and rate <= 0:
                    self._awareness.blocked(source, destination, now)
                elif row != column and self._known.confidence[row, column] > 0:
                    self._awareness.observe(LinkObservation(source, destination, rate, trip, LEAST_BYTES, now))

    def tick(self, now: float) -> None:
        for peer, message in self._member.poll(now):
            self.channel.send(peer, message)
        if self._member.version != self._version:
            self._version = self._member.version
            if self._member.coordinator == self._member.rank:
                self._on_change(self._member.plan, self._reasons.pop(self._version, self._member.plan.reason))
        if now - self._reported >= REPORT:
            self._reported = now
            self._report(now)
        if self._member.coordinator == self._member.rank and not self._member.adrift:
            self._change_level(now)
            if self._config.aware:
                self._coordinate(now)
        else:
            self.level = "", ""  # of a network that it no longer decides for; its controller wishes again at each step

    def abort(self, error: BaseException) -> None:
        """Tell everybody that this member stops; best effort, the wire's own goodbye follows."""
        for peer in self._member.members:
            if peer != self._member.rank:
                try:
                    self.channel.send(peer, Abort(f"rank {self._member.rank} stopped: {error}"[:500]))
                except GradwireError:
                    continue

    def close(self) -> None:
        if self._planning is not None:
            self._planning.join(30.0)

    # ---- reports and probes --------------------------------------------------------------------------------------
    def _report(self, now: float) -> None:
        seen = self.link_monitor.observe(now)
        coordinator = self._member.coordinator
        if coordinator == self._member.rank:
            self._learn(seen, now)
        elif seen:
            self.channel.send(coordinator, LinkReport(seen))

    def _learn(self, seen: tuple[LinkObservation, ...], now: float) -> None:
        # Clocks differ between members: what counts is when the report came in.
        self._awareness.report(replace(one, at=now + one.at) for one in seen)

    def _on_message(self, sender: int, message: ControlMessage) -> None:
        now = self._executor.now()
        match message:
            case LinkReport():
                self._learn(message.observations, now)
            case Probe() if message.destination == self._member.rank:
                self._expect(sender, message)
            case Probe():
                self._probe(message, now)
            case Fetch() if self._catch_up is not None:
                self._catch_up.serve_results(sender, message)
            case StateOffer() if self._catch_up is not None:
                self._catch_up.begin_state(sender, message)
            case Fetch() | StateOffer():
                raise IntegrityError(f"rank {sender} asks for what only elastic plans have: other settings there?")
            case Leave():
                self._frame_io.left.add(sender)
                self._member.handle(sender, message, now)
            case Abort():
                self._on_abort(sender, message)
            case _:
                self._member.handle(sender, message, now)

    def _on_abort(self, sender: int, message: Abort) -> None:
        if self._executor.elastic:
            raise LostPeerError(sender, message.why, left=True)
        raise LinkError(message.why)

    def _probe(self, probe: Probe, now: float) -> None:
        """Over an idle link only; and nobody waits for a probe that is not on its way."""
        peer = probe.destination
        if peer not in self._frame_io.left | self._frame_io.disconnected and self.link_monitor.idle(peer, now, REPORT):
            self._probes += 1
            probe = replace(probe, number=self._probes)
            self.channel.send(peer, probe)
            self._frame_io.send(peer, _tag(probe), torch.zeros(LEAST_BYTES, dtype=torch.uint8), data=False)

    def _expect(self, source: int, probe: Probe) -> None:
        self._frame_io.post(
            source, _tag(probe), LEAST_BYTES, lambda frame, _: self._frame_io.release_buffer(frame), no_deadline=True
        )

    # ---- coordinating --------------------------------------------------------------------------------------------
    def network(self, members: Sequence[int], now: float) -> Matrix:
        """What to plan by: links as they were measured; if none was or is to count, what was known beforehand."""
        known = self._known.only(members)
        if not self._config.aware or not self._awareness.informed:
            return known
        return self._awareness.matrix(known.members, now, up=known.up, down=known.down)

    def _change_level(self, now: float) -> None:
        """A plan that differs in its level alone, where plans decide it and one of another level is wished for."""
        (level, why), plan = self.level, self._member.plan
        if plan.level and level not in ("", plan.level) and not self._member.proposing:
            self._reasons[self._member.propose(replace(plan, level=level), now)] = why

    def _coordinate(self, now: float) -> None:
        while not self._new_plans.empty():
            epoch, plan, why = self._new_plans.get()
            if epoch == self._member.epoch:
                self._reasons[self._member.propose(replace(plan, level=self._member.plan.level), now)] = why
        busy = self._member.proposing or (self._planning is not None and self._planning.is_alive())
        if now - self._looked < LOOK or busy:
            return
        self._looked = now
        if self._config.probe:
            self._ask_for_probes(now)
        if self._replanner is None or self._epoch != self._member.epoch:
            self._epoch = self._member.epoch
            self._replanner = Replanner(self._member.plan, self._config.replan, now)
        self._replanner.plan = self._member.plan  # a proposal has its number from the member, if it came into force
        matrix = self.network(self._member.members, now)
        self._planning = threading.Thread(target=self._consider, args=(matrix, now), name="gradwire-plan", daemon=True)
        self._planning.start()

    def _consider(self, matrix: Matrix, now: float) -> None:
        assert self._replanner is not None
        epoch = self._epoch
        try:
            plan, why = self._replanner.consider(matrix, self._job, now)
        except GradwireError:
            return  # somebody is cut off: losing the connection, not planning, deals with that
        if plan is not None:
            self._new_plans.put((epoch, plan, why))
            self._frame_io.wake()

    def _ask_for_probes(self, now: float) -> None:
        for source, destination in self._awareness.to_probe(self._member.members, now, STALE):
            probe = Probe(source, destination)
            if source == self._member.rank:
                self._probe(probe, now)
            else:
                self.channel.send(source, probe)
            self._awareness.probe_requested(source, destination, now)


def _tag(probe: Probe) -> int:
    return PROBE << 60 | probe.number
