"""The leader's side of a new epoch: who answered, whether they may go on, and from which step.

In: answers (Ready). Out: an Install when all have answered and are enough of the last epoch. Pure; no timers.
The rule: those may go on who are more than half of the last installed epoch's members, or exactly half with its
lowest rank among them. So two halves of a cut network never both train on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gradwire.flow import Plan
from gradwire.plan.messages import Install, Ready

Replan = Callable[[tuple[int, ...], int], Plan]


@dataclass(slots=True)
class Gathering:
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

    def conclude(self, replan: Replan, version: int, quorum: bool) -> Install | None:
        """The Install, once all answered and they are enough; None while not (or never, for a minority)."""
        if self.waiting or self.install:
            return self.install
        old = [(rank, answer) for rank, answer in self.answers.items() if not answer.fresh]
        if not old:
            return None
        last = max((answer for _, answer in old), key=lambda answer: answer.installed)
        if quorum and not may_go_on(set(self.members), last.members):
            return None
        # The furthest survivor's last step stands: it was finished by all of them or can be handed to the others.
        done = max(answer.step for _, answer in old)
        holder = min(rank for rank, answer in old if answer.step == done)
        plan = replace(replan(self.members, version), version=version)
        self.install = Install(self.epoch, version, done + 1, self.members, plan, holder)
        self.unaware = set(self.members)
        return self.install


def may_go_on(present: set[int], last: tuple[int, ...]) -> bool:
    """Whether those present may act for the last epoch's members."""
    kept = present & set(last)
    return 2 * len(kept) > len(last) or (2 * len(kept) == len(last) and min(last) in kept)
