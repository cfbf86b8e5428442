"""Regroup: the leader's side of a new epoch: who answered, whether they have a quorum, and the first step.

In: answers (Ready). Out: an Install when all have answered and have a quorum of the last epoch. Pure; no timers.
Quorum: more than half of the members of the last installed epoch, or exactly half including its lowest rank. So two
halves of a partitioned network never both continue. The same is required for every later epoch that a present member
has promised and whose leader is absent, because that leader may have installed it. Members that left in order are not
counted: they train nowhere. A member that missed an epoch has a stale state and counts as new. A restarted process
knows no epoch, so it is not part of a quorum: the others must have one without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace

from gradwire.plan.membership.messages import Attempt, Install, Leave, Ready
from gradwire.types import Plan

Replan = Callable[[tuple[int, ...], int], Plan]


@dataclass(slots=True)
class RegroupVotes:
    """One attempt to form an epoch; `waiting` are the members that have not answered."""

    epoch: int
    members: tuple[int, ...]
    answers: dict[int, Ready] = field(default_factory=dict)
    install: Install | None = None
    unacknowledged: set[int] = field(default_factory=set)

    @property
    def waiting(self) -> set[int]:
        return set(self.members) - self.answers.keys()

    def add_answer(self, rank: int, ready: Ready) -> None:
        if ready.epoch == self.epoch and rank in self.members:
            self.answers[rank] = ready

    def conclude(self, replan: Replan, version: int, left: Mapping[int, Leave]) -> Install | None:
        """The Install, once all have answered and have a quorum; None before (and always for a minority)."""
        if self.waiting or self.install:
            return self.install
        known = [answer for answer in self.answers.values() if not answer.fresh]
        if not known:
            return None
        last = max(known, key=lambda answer: answer.installed)
        current = [(rank, answer) for rank, answer in self.answers.items() if _holds_state(rank, answer, last)]
        counted = {rank for rank, answer in self.answers.items() if rank in answer.members}
        if not current or not all(
            has_quorum(counted, group, left.keys()) for group in self._possible_epochs(last, left)
        ):
            return None
        # The last step of the most advanced survivor is valid: the others completed it too or can fetch its results.
        done = max(answer.step for _, answer in current)
        holder = min(rank for rank, answer in current if answer.step == done)
        plan = replace(replan(self.members, version), version=version)
        fresh = tuple(sorted(set(self.members) - {rank for rank, _ in current}))
        self.install = Install(self.epoch, version, done + 1, self.members, plan, holder, fresh)
        self.unacknowledged = set(self.members)
        return self.install

    def _possible_epochs(self, last: Ready, left: Mapping[int, Leave]) -> list[tuple[int, ...]]:
        """Members of the last epoch and of every later one that an absent leader may have installed."""
        groups = [last.members]
        for attempt in sorted({one for answer in self.answers.values() for one in answer.attempts}, key=_epoch):
            # Its leader may know of members that left without a message to anyone here.
            gone = {rank for group in groups for rank in group if rank not in self.answers} - set(attempt.members)
            possible = any(has_quorum(set(attempt.members), group, gone) for group in groups)
            absent = attempt.leader not in self.answers
            # A leader that left in order named its epoch.
            void = attempt.leader in left and attempt.epoch > left[attempt.leader].epoch
            if possible and absent and not void and attempt.epoch > last.installed:
                groups.append(attempt.members)
        return groups


def _epoch(attempt: Attempt) -> int:
    return attempt.epoch


def _holds_state(rank: int, answer: Ready, last: Ready) -> bool:
    """Whether a member's state is the one that the last epoch began with, or a later one of that epoch."""
    if answer.installed == last.installed:
        return not answer.fresh
    return not answer.fresh and rank in last.members and rank not in last.joined


def has_quorum(present: set[int], last: tuple[int, ...], left: Set[int] = frozenset()) -> bool:
    """Whether `present` are a quorum of an epoch's members, not counting those that left in order."""
    counted = set(last) - left
    kept = present & counted
    return 2 * len(kept) > len(counted) or (2 * len(kept) == len(counted) > 0 and min(counted) in kept)
