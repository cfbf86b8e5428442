"""Plan versions: which plan is in force, proposed, acknowledged and committed, at one member.

In: announcements, acknowledgements, commits and the merged vote of each step. Out: the vote of the next step and the
messages of an own proposal. Pure; it knows nothing of epochs except that a new one starts with one plan.
"""

from __future__ import annotations

from gradwire.errors import IntegrityError
from gradwire.plan.membership.messages import NO_VOTE, Ack, Announce, Commit
from gradwire.plan.membership.outgoing import Addressed
from gradwire.plan.membership.proposal import Proposal
from gradwire.types import Plan


class UniqueNumbers:
    """Numbers for versions and epochs: equal to the rank modulo `stride`, so two members never use the same one."""

    def __init__(self, rank: int, stride: int, highest: int) -> None:
        self._rank, self._stride, self._highest = rank, stride, highest

    def seen(self, number: int) -> None:
        self._highest = max(self._highest, number)

    def next(self, above: int = 0) -> int:
        """The lowest own number above this one and all that were seen. Never given twice."""
        highest = max(self._highest, above)
        self._highest = highest + 1 + (self._rank - highest - 1) % self._stride
        return self._highest


class PlanVersions:
    """The plans that one member knows."""

    def __init__(self, numbers: UniqueNumbers, plan: Plan) -> None:
        self.version = plan.version
        self.numbers = numbers
        self._plans = {plan.version: plan}
        # The step to activate at, by committed version.
        self._commits: dict[int, int] = {}
        self._proposal: Proposal | None = None

    @property
    def plan(self) -> Plan:
        """The plan in force."""
        return self._plans[self.version]

    @property
    def proposing(self) -> bool:
        """Whether an own proposal is not in force yet."""
        return self._proposal is not None and self._proposal.version > self.version

    def propose(self, plan: Plan, epoch: int, members: tuple[int, ...], rank: int) -> int:
        """Propose a plan and return its version, which is new: others may know the proposal that this one replaces."""
        version = self.numbers.next()
        self._proposal = Proposal(epoch, version, members, plan)
        self._plans[version] = self._proposal.plan
        self._proposal.acked.add(rank)
        return version

    def announced(self, message: Announce) -> bool:
        """Store a proposed plan; returns whether it is newer than the plan in force."""
        if message.version <= self.version:
            return False
        self.numbers.seen(message.version)
        self._plans[message.version] = message.plan
        return True

    def acknowledged(self, sender: int, message: Ack) -> bool:
        """Returns whether the own proposal can be committed now."""
        proposal = self._proposal
        if proposal is None or (message.epoch, message.version) != (proposal.epoch, proposal.version):
            return False
        proposal.acked.add(sender)
        return proposal.complete and proposal.activate is None

    def committed(self, message: Commit) -> None:
        if message.version in self._plans and message.version > self.version:
            self._commits[message.version] = message.activate

    def vote(self, step: int) -> int:
        """The version to vote for in this step."""
        ready = [version for version, activate in self._commits.items() if activate == step + 1]
        return max(ready, default=NO_VOTE)

    def step_done(self, vote: int, next_step: int, rank: int) -> None:
        """Put the plan in force that all members voted for, if any."""
        if vote != NO_VOTE:
            self._activate(vote, rank)
        self._commits = {v: at for v, at in self._commits.items() if at > next_step and v > self.version}

    def _activate(self, version: int, rank: int) -> None:
        if version not in self._plans:
            raise IntegrityError(f"all members voted for plan {version}, which member {rank} never received")
        previous, self.version = self.version, version
        # The previous plan stays until its last step is done everywhere.
        self._plans = {v: plan for v, plan in self._plans.items() if v >= version or v == previous}

    def install(self, plan: Plan, version: int) -> None:
        """Start a new epoch with this plan; all proposals of the old one are void."""
        self.numbers.seen(version)
        self.version, self._plans = version, {version: plan}
        self._commits, self._proposal = {}, None

    def messages(self, step: int) -> list[Addressed]:
        """What is unanswered of the own proposal."""
        proposal = self._proposal
        if proposal is None or self.version >= proposal.version:
            self._proposal = None
            return []
        messages = proposal.messages(step)
        if proposal.activate is not None:
            self._commits[proposal.version] = proposal.activate
        return messages
