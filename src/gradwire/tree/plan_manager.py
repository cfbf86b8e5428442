"""Plan manager: sends and receives a member's control messages, reports its links and, at the coordinator, proposes
better plans.

Runs on the executor's thread (`tick`), except for planning itself: that takes long and has its own thread, whose result
is used at a later tick. A new coordinator starts with its own measurements and the reports that follow.
"""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, replace
from typing import Final, get_args

import torch

from gradwire.errors import GradwireError
from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.membership.control_messages import Abort, LinkReport, Probe
from gradwire.plan.membership.link_estimates import LEAST_BYTES, KnownNetwork, LinkObservation
from gradwire.plan.membership.member import Member
from gradwire.plan.membership.messages import Leave, Message
from gradwire.plan.membership.replan import ReplanConfig, Replanner
from gradwire.tree.control_channel import ControlChannel
from gradwire.tree.frame_header import PROBE
from gradwire.tree.link_monitor import LinkMonitor
from gradwire.tree.lost_peer import LostPeerError
from gradwire.tree.membership_listener import MembershipListener
from gradwire.types import Plan

# Seconds between reports, between checks of the plan, and until an unused link is probed again.
REPORT: Final = 1.0
CHECK: Final = 2.0
STALE: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanManagerConfig:
    """Plans are made for `job`; `probe` measures links that carry nothing."""

    job: ReductionJob
    replan: ReplanConfig
    probe: bool = True


class PlanManager:
    """One per member."""

    def __init__(
        self,
        member: Member,
        channel: ControlChannel,
        network: KnownNetwork,
        config: PlanManagerConfig,
        listener: MembershipListener,
    ) -> None:
        self._member, self._network, self._config, self._listener = member, network, config, listener
        self.channel, self._frame_io = channel, channel.frame_io
        self.link_monitor = LinkMonitor(member.rank, self._frame_io)
        self._replanner: Replanner | None = None
        self._epoch, self._version = member.epoch, member.version
        self._new_plans: queue.SimpleQueue[tuple[int, Plan, str]] = queue.SimpleQueue()
        # The level that this member's controller requests, and why; used where plans decide the level.
        self._requested_level: tuple[str, str] = "", ""
        self._planning: threading.Thread | None = None
        self._reasons: dict[int, str] = {}
        self._reported = self._checked = 0.0
        self._probes = 0
        for kind in get_args(Message):
            channel.subscribe(kind, self._on_membership)
        channel.subscribe(Leave, self._on_leave)
        channel.subscribe(Abort, self._on_abort)
        channel.subscribe(LinkReport, self._on_report)
        channel.subscribe(Probe, self._on_probe)

    def begin(self, now: float) -> None:
        """Before the executor's thread starts: receive from all connected members."""
        self.channel.listen(rank for rank in self._member.members if rank in self._member.membership.connected)
        self._network.begin(now)

    def request_level(self, level: str, why: str) -> None:
        """From any thread: propose this level, where plans decide it and this member is the coordinator."""
        self._requested_level = level, why

    def tick(self, now: float) -> None:
        for peer, message in self._member.poll(now):
            self.channel.send(peer, message)
        coordinates = self._member.coordinator == self._member.rank
        if self._member.version != self._version:
            self._version = self._member.version
            if coordinates:
                plan = self._member.plan
                self._listener.plan_changed(plan, self._reasons.pop(self._version, plan.reason))
        if now - self._reported >= REPORT:
            self._reported = now
            self._report(now)
        if coordinates and not self._member.membership.awaits_epoch:
            self._change_level(now)
            if self._network.aware:
                self._coordinate(now)
        else:
            # If this member becomes the coordinator again, the network may be another one; its controller requests a
            # level at each step.
            self._requested_level = "", ""

    def abort(self, error: BaseException) -> None:
        """Send all members the error that stops this one; best effort, the wire closes anyway."""
        for peer in self._member.members:
            if peer != self._member.rank:
                try:
                    self.channel.send(peer, Abort(f"rank {self._member.rank} stopped: {error}"[:500]))
                except GradwireError:
                    continue

    def close(self) -> None:
        if self._planning is not None:
            self._planning.join(30.0)

    # ---- messages ------------------------------------------------------------------------------------------------
    def _on_membership(self, sender: int, message: Message) -> None:
        self._member.handle(sender, message, self._frame_io.now())

    def _on_leave(self, sender: int, message: Leave) -> None:
        self._frame_io.left.add(sender)
        self._on_membership(sender, message)

    def _on_abort(self, sender: int, message: Abort) -> None:
        raise LostPeerError(sender, message.why, left=True)

    def _on_report(self, sender: int, message: LinkReport) -> None:
        self._learn(message.observations, self._frame_io.now())

    def _on_probe(self, sender: int, message: Probe) -> None:
        if message.destination == self._member.rank:
            release = lambda frame, _: self._frame_io.release_buffer(frame)  # noqa: E731
            self._frame_io.post(sender, _tag(message), LEAST_BYTES, release, no_deadline=True)
        else:
            self._send_probe(message, self._frame_io.now())

    # ---- reports and probes --------------------------------------------------------------------------------------
    def _report(self, now: float) -> None:
        observations = self.link_monitor.observe(now)
        coordinator = self._member.coordinator
        if coordinator == self._member.rank:
            self._learn(observations, now)
        elif observations:
            self.channel.send(coordinator, LinkReport(observations))

    def _learn(self, observations: tuple[LinkObservation, ...], now: float) -> None:
        # Clocks of members differ, so the time of arrival counts.
        self._network.links.report(replace(one, at=now + one.at) for one in observations)

    def _send_probe(self, probe: Probe, now: float) -> None:
        """Over an idle link only. The destination posts a receive only when a probe is really sent."""
        peer = probe.destination
        unreachable = self._frame_io.left | self._frame_io.disconnected
        if peer not in unreachable and self.link_monitor.idle(peer, now, REPORT):
            self._probes += 1
            probe = replace(probe, number=self._probes)
            self.channel.send(peer, probe)
            self._frame_io.send(peer, _tag(probe), torch.zeros(LEAST_BYTES, dtype=torch.uint8), data=False)

    # ---- coordinating --------------------------------------------------------------------------------------------
    def _change_level(self, now: float) -> None:
        """Propose the current plan with the requested level, where plans decide it."""
        (level, why), plan = self._requested_level, self._member.plan
        if plan.level and level not in ("", plan.level) and not self._member.proposing:
            self._reasons[self._member.propose(replace(plan, level=level), now)] = why

    def _coordinate(self, now: float) -> None:
        """1. propose finished plans  2. request probes  3. start to plan again."""
        while not self._new_plans.empty():  # 1
            epoch, plan, why = self._new_plans.get()
            if epoch == self._member.epoch:
                self._reasons[self._member.propose(replace(plan, level=self._member.plan.level), now)] = why
        busy = self._member.proposing or (self._planning is not None and self._planning.is_alive())
        if now - self._checked < CHECK or busy:
            return
        self._checked = now
        if self._config.probe:  # 2
            self._request_probes(now)
        if self._replanner is None or self._epoch != self._member.epoch:  # 3
            self._epoch = self._member.epoch
            self._replanner = Replanner(self._member.plan, self._config.replan, now)
        self._replanner.plan = self._member.plan  # a proposal that came into force has its version from the member
        given = self._network.matrix(self._member.members, now), now, self._network.links.news
        self._planning = threading.Thread(target=self._plan, args=given, name="gradwire-plan", daemon=True)
        self._planning.start()

    def _plan(self, matrix: Matrix, now: float, news: int) -> None:
        """On the planning thread."""
        assert self._replanner is not None
        epoch = self._epoch
        try:
            plan, why = self._replanner.consider(matrix, self._config.job, now, news)
        except GradwireError:
            return  # a member is unreachable: that is handled when its connection is lost
        if plan is not None:
            self._new_plans.put((epoch, plan, why))
            self._frame_io.wake()

    def _request_probes(self, now: float) -> None:
        for source, destination in self._network.links.to_probe(self._member.members, now, STALE):
            probe = Probe(source, destination)
            if source == self._member.rank:
                self._send_probe(probe, now)
            else:
                self.channel.send(source, probe)
            self._network.links.probe_requested(source, destination, now)


def _tag(probe: Probe) -> int:
    return PROBE << 60 | probe.number
