"""Epoch change: forms a new epoch when a member is lost or joins, and includes members that ask to rejoin.

In: lost members, messages, the time. Out: messages, and changes of `Membership`. Pure. The lowest rank that is alive
and has state leads the regroup (`regroup` has the rules). A member that is in no continuing epoch (it was disconnected,
or taken for lost) asks all peers that it reaches until an epoch includes it (`rejoin`). Its state is stale: it receives
a full copy (`Install.fresh`) before its next step.
"""

from __future__ import annotations

from dataclasses import replace

from gradwire.errors import LinkError
from gradwire.plan.membership.membership import Membership
from gradwire.plan.membership.messages import Ack, Attempt, Install, Leave, Message, Ready, Regroup, Rejoin
from gradwire.plan.membership.outgoing import Addressed, OutgoingMessages
from gradwire.plan.membership.plan_versions import PlanVersions
from gradwire.plan.membership.regroup import RegroupVotes, Replan
from gradwire.plan.membership.rejoin_requests import STUCK
from gradwire.types import Plan


class EpochChange:
    """One member's side. `votes` if it counts for a quorum although it has no state yet."""

    def __init__(
        self, membership: Membership, versions: PlanVersions, out: OutgoingMessages, replan: Replan, votes: bool
    ) -> None:
        self._membership, self._versions, self._out = membership, versions, out
        self._rank, self._numbers = membership.rank, versions.numbers
        self._replan, self._votes = replan, votes
        # The regroup that this member leads.
        self._regroup: RegroupVotes | None = None

    def lost(self, rank: int, now: float) -> None:
        """The transport lost this peer."""
        self._membership.alive.discard(rank)
        self._membership.disconnected(rank)
        if rank in self._membership.members or (self._regroup and rank in self._regroup.members):
            self._start_regroup(now)

    def admit(self, rank: int, now: float) -> None:
        """A new or lost member asks to join."""
        self._membership.alive.add(rank)
        self._start_regroup(now)

    def require_quorum(self) -> None:
        """LinkError for a member that cannot form an epoch: it is in the smaller part of a partitioned network."""
        regroup = self._regroup
        if regroup and not regroup.waiting and regroup.install is None:
            raise LinkError(
                f"members {regroup.members} are not enough of {self._membership.members} to continue; "
                "wait for the others, or restart from the last checkpoint"
            )

    # ---- messages ------------------------------------------------------------------------------------------------
    def handle(self, sender: int, message: Message, now: float) -> None:
        match message:
            case Ack():
                if self._regroup and self._regroup.install and message.epoch == self._regroup.epoch:
                    self._regroup.unacknowledged.discard(sender)
            case Regroup():
                self._on_regroup(sender, message)
            case Ready():
                if self._regroup:
                    self._regroup.add_answer(sender, message)
                    self._conclude(now)
            case Install():
                self._on_install(sender, message)
            case Rejoin():
                self._on_rejoin(sender, message, now)
            case Leave():
                self._membership.left[sender] = message
                if self._regroup and sender in self._regroup.waiting:
                    self.lost(sender, now)

    def requests(self, now: float) -> list[Addressed]:
        """Requests to be included in an epoch, when due. All peers get them: only they know which of them can do it."""
        waited = self._membership.rejoin.due(self._membership.awaits_epoch, now)
        if waited is None:
            return []
        return [(rank, self._rejoin_request(waited)) for rank in sorted(self._membership.connected)]

    def unanswered(self) -> list[Addressed]:
        """Messages of a regroup that this member leads, and notices to those that its epoch does not include."""
        out: list[Addressed] = []
        regroup, membership = self._regroup, self._membership
        if regroup and regroup.install is None:
            call = Regroup(regroup.epoch, self._versions.version, membership.done, regroup.members)
            out += [(rank, call) for rank in sorted(regroup.waiting)]
        elif regroup and regroup.install:
            out += [(rank, regroup.install) for rank in sorted(regroup.unacknowledged)]
        if membership.rejoin.enabled and self._rank == membership.leader and not membership.awaits_epoch:
            # They may still be in an older epoch.
            excluded = membership.connected - set(membership.members) - membership.left.keys()
            out += [(rank, self._notice()) for rank in sorted(excluded)]
        return out

    # ---- regroup -------------------------------------------------------------------------------------------------
    def _notice(self) -> Regroup:
        own = self._membership
        return Regroup(own.epoch, self._versions.version, own.done, own.members)

    def _outdated(self, sender: int, epoch: int) -> bool:
        """Whether this member is beyond that epoch. A sender that this one's epoch does not include gets a notice."""
        own = self._membership
        if epoch < own.epoch and sender not in own.members and own.rejoin.enabled:
            self._out.send(sender, self._notice())
        return epoch < own.promised or epoch <= own.epoch

    def _start_regroup(self, now: float) -> None:
        """Form a new epoch, if this member is the leader."""
        own = self._membership
        if own.fresh or self._rank != own.leader:
            return
        candidates = tuple(sorted(own.alive - own.left.keys()))
        self._regroup = RegroupVotes(self._numbers.next(own.promised), candidates)
        own.promise(self._regroup.epoch)
        self._regroup.add_answer(self._rank, self._ready(self._regroup.epoch))
        self._out.resend(now)
        self._conclude(now)

    def _ready(self, epoch: int) -> Ready:
        own, version = self._membership, self._versions.version
        members = (*own.members, self._rank) if own.fresh and self._votes else own.members
        return Ready(epoch, version, own.done, own.epoch, members, own.fresh, own.attempts, own.joined)

    def _on_regroup(self, sender: int, message: Regroup) -> None:
        if self._outdated(sender, message.epoch):
            return
        own = self._membership
        own.promise(message.epoch)
        self._numbers.seen(message.epoch)
        if self._regroup and self._regroup.epoch < message.epoch:
            self._regroup = None
        if self._rank in message.members:
            self._out.send(sender, self._ready(message.epoch))
            if not any(known.epoch == message.epoch for known in own.attempts):
                own.attempts += (Attempt(message.epoch, sender, message.members),)

    def _new_plan(self, members: tuple[int, ...], version: int) -> Plan:
        """For a new epoch; the level in force stays."""
        return replace(self._replan(members, version), level=self._versions.plan.level)

    def _conclude(self, now: float) -> None:
        regroup = self._regroup
        if regroup is None or regroup.epoch != self._membership.promised or regroup.install:
            return
        install = regroup.conclude(self._new_plan, regroup.epoch, self._membership.left)
        if install:
            self._on_install(self._rank, install)
            regroup.unacknowledged.discard(self._rank)
            self._out.resend(now)

    def _on_install(self, sender: int, message: Install) -> None:
        if message.epoch == self._membership.epoch:
            self._acknowledge(sender)
        if self._outdated(sender, message.epoch):
            return
        self._membership.install(message)
        self._versions.install(message.plan, message.version)
        self._acknowledge(sender)

    def _acknowledge(self, sender: int) -> None:
        self._out.send(sender, Ack(self._membership.epoch, self._versions.version, self._membership.step))

    # ---- rejoin --------------------------------------------------------------------------------------------------
    def _rejoin_request(self, waited: float = 0.0) -> Rejoin:
        own, version = self._membership, self._versions.version
        return Rejoin(own.promised, version, own.done, own.epoch, tuple(sorted(own.connected)), waited, own.fresh)

    def _on_rejoin(self, sender: int, message: Rejoin, now: float) -> None:
        """Only the leader can answer: with a new epoch."""
        own = self._membership
        if not own.rejoin.enabled:
            return
        self._numbers.seen(message.epoch)
        if message.installed == own.epoch and not message.fresh:
            own.newcomers.discard(sender)
        if sender in own.left or self._rank != own.leader:
            self._follow_rejoin(sender, message)
        else:
            self._lead_rejoin(sender, message, now)

    def _follow_rejoin(self, sender: int, message: Rejoin) -> None:
        own = self._membership
        if sender in own.members:
            # It has promised a later epoch and will not continue in this one, so this member cannot either.
            own.promise(message.epoch)
        if sender == own.leader and message.installed == own.epoch:
            self._out.send(sender, self._rejoin_request())  # it has to lead, and may take this member for lost

    def _lead_rejoin(self, sender: int, message: Rejoin, now: float) -> None:
        own, regroup, present = self._membership, self._regroup, self._membership.present
        called = regroup is not None and regroup.install is None and sender in regroup.members
        unreached = present - {sender, self._rank} - set(message.reach)
        if called or (sender in present and message.installed < own.epoch):
            if message.epoch > own.promised:
                self._start_regroup(now)  # it promised a later epoch, which failed: it ignores older ones
        elif sender not in present or message.installed > own.epoch:
            if not unreached:
                self.admit(sender, now)
        elif not unreached:
            self._start_regroup(now)  # it lost a member that is connected again
        elif message.waited >= STUCK:
            own.alive.discard(sender)
            self._start_regroup(now)
