"""Member: how all members change plans at the same step, without waiting and without mixing plans.

One `Member` per rank, without I/O: `handle` takes messages, `poll` returns them, `now` is an argument. `PlanVersions`
knows the plans, `Membership` the epoch and its members, and `EpochChange` forms the next epoch.

Changing plans (within an epoch, all members alive):
1. A proposer announces version v and repeats it until every member has acknowledged it.
2. It then commits: "vote for v in step a-1", where a is two steps ahead, and again later if that failed.
3. A member that knows the commit when step a-1 begins adds its vote for v to its data. Votes are merged with the sums,
   so all members end step a-1 with the same merged vote: v means v from step a on, anything else means no change.
   A lost message, a slow member or a dead proposer only cost time. Without votes the plan stays.

Changing members (one is lost or joins): the lowest rank alive forms an epoch (`regroup`). Members that have answered
end no more steps of the old epoch. Unfinished steps are repeated in the new one; members that missed a result receive
it. A member that leaves in order costs nothing until a step begins that needs it.
"""

from __future__ import annotations

from collections.abc import Iterable

from gradwire.plan.membership.epoch_change import EpochChange
from gradwire.plan.membership.membership import Membership
from gradwire.plan.membership.messages import Ack, Announce, Commit, Leave, Message, Tag
from gradwire.plan.membership.outgoing import Addressed, OutgoingMessages
from gradwire.plan.membership.plan_versions import PlanVersions, UniqueNumbers
from gradwire.plan.membership.regroup import Replan
from gradwire.types import Plan


class Member:
    """One rank's view of epoch, members, plan and step."""

    def __init__(
        self, rank: int, members: Iterable[int], plan: Plan, replan: Replan, stride: int = 4096, votes: bool = False
    ) -> None:
        self.rank = rank
        self._out = OutgoingMessages()
        self.versions = PlanVersions(UniqueNumbers(rank, stride, plan.version), plan)
        self.membership = Membership(rank, members)
        self._epochs = EpochChange(self.membership, self.versions, self._out, replan, votes)
        # Of the current step; void when its epoch ends.
        self._tag: Tag | None = None

    @property
    def members(self) -> tuple[int, ...]:
        return self.membership.members

    @property
    def epoch(self) -> int:
        return self.membership.epoch

    @property
    def coordinator(self) -> int:
        return self.membership.coordinator

    @property
    def done(self) -> int:
        """The last step done."""
        return self.membership.done

    @property
    def step(self) -> int:
        """The next step to do."""
        return self.membership.step

    @property
    def version(self) -> int:
        return self.versions.version

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        return self.versions.plan

    @property
    def proposing(self) -> bool:
        """Whether an own proposal is not in force yet."""
        return self.versions.proposing

    @property
    def tag(self) -> Tag | None:
        """Of the step that has begun in this epoch."""
        return self._tag if self._tag is not None and self._tag.epoch == self.epoch else None

    # ---- steps ---------------------------------------------------------------------------------------------------
    def begin_step(self) -> Tag | None:
        """The tag for this step's data, the same at every call; None between epochs."""
        if self.membership.stopped:
            return None
        if self.tag is None:
            self._tag = Tag(self.epoch, self.version, self.step, self.versions.vote(self.step))
        return self._tag

    def complete_step(self, tag: Tag, vote: int) -> bool:
        """All data is here, votes merged to `vote`. False if the epoch has changed: discard the result."""
        if self.membership.stopped or self.tag is None or (tag.epoch, tag.step) != (self.epoch, self.step):
            return False
        self.membership.step_done()
        self._tag = None
        self.versions.step_done(vote, self.step, self.rank)
        return True

    def caught_up(self, step: int) -> None:
        """The result of `step`, or the state after it, has arrived."""
        self.membership.caught_up(step)

    def blocking(self) -> list[int]:
        """Members that left although the current step or a missing result needs them."""
        return self.membership.blocking(self.tag.step if self.tag is not None else -1)

    # ---- members -------------------------------------------------------------------------------------------------
    def lost(self, rank: int, now: float) -> None:
        """The transport lost this peer."""
        self._epochs.lost(rank, now)

    def admit(self, rank: int, now: float) -> None:
        """A new or lost member asks to join."""
        self._epochs.admit(rank, now)

    def leave(self) -> Leave:
        """The message for all peers before this member leaves."""
        return Leave(self.epoch, self.version, self.done)

    def require_quorum(self) -> None:
        """LinkError for a member that cannot form an epoch: it is in the smaller part of a partitioned network."""
        self._epochs.require_quorum()

    # ---- messages ------------------------------------------------------------------------------------------------
    def propose(self, plan: Plan, now: float) -> int:
        """Propose a plan and return its version; an unfinished own proposal is dropped."""
        version = self.versions.propose(plan, self.epoch, self.members, self.rank)
        self._out.resend(now)
        return version

    def handle(self, sender: int, message: Message, now: float) -> None:
        match message:
            case Announce():
                if message.epoch == self.epoch and self.versions.announced(message):
                    self._out.send(sender, Ack(self.epoch, message.version, self.step))
            case Commit():
                if message.epoch == self.epoch:
                    self.versions.committed(message)
            case Ack():
                if self.versions.acknowledged(sender, message):
                    self._out.resend(now)
                self._epochs.handle(sender, message, now)
            case _:
                self._epochs.handle(sender, message, now)

    def poll(self, now: float) -> list[Addressed]:
        """Messages to send now, as (destination, message)."""
        requests = self._epochs.requests(now)
        out = self._out.drain() + requests
        if self._out.due(now):
            out += [] if self.membership.stopped else self.versions.messages(self.step)
            out += self._epochs.unanswered()
        # A leader answers its own Install too; there is no connection to itself.
        return [(rank, message) for rank, message in out if rank != self.rank]
