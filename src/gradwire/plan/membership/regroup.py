"""The leader's side of a new epoch: who answered, whether they may go on, and from which step.

In: answers (Ready). Out: an Install when all have answered and are enough of the last epoch. Pure; no timers.
The rule: those may go on who are more than half of the last installed epoch's members, or exactly half with its
lowest rank among them. So two halves of a cut network never both train on. The same must hold for every later epoch
that somebody present promised itself to and whose leader is absent: that leader may have installed it. Who left in
order does not count: it trains on nowhere. Whom an epoch went on without holds a state that is nobody's any more, and
counts as a newcomer. A process that was started anew in the place of a dead one remembers no epoch, so it is none of
those who may go on: the others must be enough without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace

from gradwire.plan.membership.messages import Attempt, Install, Leave, Ready
from gradwire.types import Plan

Replan = Callable[[tuple[int, ...], int], Plan]


@dataclass(slots=True)
class RegroupVotes:
    """One attempt to form an epoch; `waiting` shrinks as answers come."""

    epoch: int
    members: tuple[int, ...]
    answers: dict[int, Ready] = field(default_factory=dict)
    install: Install | None = None
    unaware: set[int] = field(default_factory=set)

    @property
    def waiting(self) -> set[int]:
        return set(self.members) - self.answers.keys()

    def hear(self, rank: int, ready: Ready) -> None:
        if ready.epoch == self.epoch and rank in self.members:
            self.answers[rank] = ready

    def conclude(self, replan: Replan, version: int, parted: Mapping[int, Leave]) -> Install | None:
        """The Install, once all answered and they are enough; None while not (or never, for a minority)."""
        if self.waiting or self.install:
            return self.install
        known = [answer for answer in self.answers.values() if not answer.fresh]
        if not known:
            return None
        last = max(known, key=lambda answer: answer.installed)
        old = [(rank, answer) for rank, answer in self.answers.items() if _holds_state(rank, answer, last)]
        remembering = {rank for rank, answer in self.answers.items() if rank in answer.members}
        if not old or not all(may_go_on(remembering, group, parted.keys()) for group in self._perhaps(last, parted)):
            return None
        # The furthest survivor's last step stands: it was finished by all of them or can be handed to the others.
        done = max(answer.step for _, answer in old)
        holder = min(rank for rank, answer in old if answer.step == done)
        plan = replace(replan(self.members, version), version=version)
        fresh = tuple(sorted(set(self.members) - {rank for rank, _ in old}))
        self.install = Install(self.epoch, version, done + 1, self.members, plan, holder, fresh)
        self.unaware = set(self.members)
        return self.install

    def _perhaps(self, last: Ready, parted: Mapping[int, Leave]) -> list[tuple[int, ...]]:
        """The members of the last epoch and of every later one that an absent leader may have installed."""
        groups = [last.members]
        for attempt in sorted({one for answer in self.answers.values() for one in answer.attempts}, key=_epoch):
            # Its leader may have known of partings that nobody here has heard of.
            gone = {rank for group in groups for rank in group if rank not in self.answers} - set(attempt.members)
            possible = any(may_go_on(set(attempt.members), group, gone) for group in groups)
            absent = attempt.leader not in self.answers
            # Who left in order said which epoch it was in.
            void = attempt.leader in parted and attempt.epoch > parted[attempt.leader].epoch
            if possible and absent and not void and attempt.epoch > last.installed:
                groups.append(attempt.members)
        return groups


def _epoch(attempt: Attempt) -> int:
    return attempt.epoch


def _holds_state(rank: int, answer: Ready, last: Ready) -> bool:
    """Whether what a member holds is what the last epoch began with, or came of it."""
    if answer.installed == last.installed:
        return not answer.fresh
    return not answer.fresh and rank in last.members and rank not in last.joined


def may_go_on(present: set[int], last: tuple[int, ...], parted: Set[int] = frozenset()) -> bool:
    """Whether those present may act for an epoch's members, of whom some have left in order."""
    counted = set(last) - parted
    kept = present & counted
    return 2 * len(kept) > len(counted) or (2 * len(kept) == len(counted) > 0 and min(counted) in kept)
