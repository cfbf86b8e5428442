"""Proposal: the proposer's side of a plan change: who acknowledged, and for which step it is committed.

In: acknowledgements and the proposer's own step. Out: messages and their receivers. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gradwire.plan.membership.messages import Announce, Commit, Message
from gradwire.types import Plan

# Steps between a commit and its plan: one in which the commit arrives, one in which members vote.
LEAD = 2


@dataclass(slots=True)
class Proposal:
    """One proposed version; `activate` is set once all have acknowledged, and increased when a vote failed."""

    epoch: int
    version: int
    members: tuple[int, ...]
    plan: Plan
    acked: set[int] = field(default_factory=set)
    activate: int | None = None
    attempts: int = 0

    def __post_init__(self) -> None:
        self.plan = replace(self.plan, version=self.version)

    @property
    def complete(self) -> bool:
        return self.acked.issuperset(self.members)

    def messages(self, step: int) -> list[tuple[int, Message]]:
        """Announce to those who have not acknowledged; once all have, commit to all."""
        missing = [rank for rank in self.members if rank not in self.acked]
        if missing:
            announce = Announce(self.epoch, self.version, step, step + LEAD, self.plan)
            return [(rank, announce) for rank in missing]
        if self.activate is None or self.activate <= step:
            # The vote failed because a commit arrived late. Allow more steps next time.
            self.attempts += 1
            self.activate = step + LEAD + self.attempts - 1
        return [(rank, Commit(self.epoch, self.version, step, self.activate)) for rank in self.members]
