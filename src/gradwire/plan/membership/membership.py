"""Membership: who is a member of the current epoch, who is lost or has left, and the state of this member.

In: what `epoch_change` has found out. Out: the epoch, its members, who leads and who coordinates, and whether steps may
run. The state changes only by the transitions of `member_state`.
"""

from __future__ import annotations

from collections.abc import Iterable

from gradwire.errors import IntegrityError
from gradwire.plan.membership.member_state import TRANSITIONS, MembershipEvent, MemberState
from gradwire.plan.membership.messages import Attempt, Install, Leave
from gradwire.plan.membership.rejoin_requests import RejoinRequests


class Membership:
    """One rank's view of the epoch and its members."""

    def __init__(self, rank: int, members: Iterable[int]) -> None:
        self.rank = rank
        self.members: tuple[int, ...] = tuple(sorted(members))
        # Whether it has no replica state; such a process replaces a lost one and is not connected to any peer yet.
        self.fresh = rank not in self.members
        self.state = MemberState.BEHIND if self.fresh else MemberState.RUNNING
        # The installed epoch, the highest promised one, and the last step done.
        self.epoch, self.promised, self.done = 0, 0, -1
        self.alive = set(self.members) | {rank}
        self.connected: set[int] = set() if self.fresh else self.alive - {rank}
        self.left: dict[int, Leave] = {}
        # What this member lacks: (holder, step).
        self.missing: tuple[int, int] | None = None
        # Members that have no state until a step of this epoch is done, and those that had none when it began.
        self.newcomers: set[int] = set()
        self.joined: tuple[int, ...] = ()
        # Promised epochs whose outcome is unknown.
        self.attempts: tuple[Attempt, ...] = ()
        self.rejoin = RejoinRequests()

    @property
    def step(self) -> int:
        """The next step to do."""
        return self.done + 1

    @property
    def stopped(self) -> bool:
        """Whether no step may begin or end."""
        return self.state is not MemberState.RUNNING

    @property
    def present(self) -> set[int]:
        """Members of the epoch that are not lost."""
        return self.alive & set(self.members)

    @property
    def coordinator(self) -> int:
        """Who proposes plans."""
        return min(self.present, default=self.rank)

    @property
    def leader(self) -> int:
        """Who forms the next epoch: the lowest rank alive that has state."""
        return min(self.present - self.newcomers - self.left.keys(), default=-1)

    @property
    def awaits_epoch(self) -> bool:
        """Whether this member waits for an epoch: a member was lost, or others may continue without this one."""
        return self.state is MemberState.PROMISED or not {self.rank} <= set(self.members) <= self.alive

    def blocking(self, begun: int) -> list[int]:
        """Members that left although step `begun` or a missing result needs them."""
        holder, present = self.missing[0] if self.missing else None, self.present
        return [rank for rank, leave in self.left.items() if rank in present and (begun > leave.step or rank == holder)]

    def disconnected(self, rank: int) -> None:
        """The transport is no longer connected to this rank; whether it is lost is decided elsewhere."""
        self.connected.discard(rank)

    def reconnected(self, rank: int) -> None:
        """The transport is connected to this rank again."""
        self.connected.add(rank)

    def replaced(self, rank: int) -> None:
        """A new process replaces one that left."""
        self.left.pop(rank, None)

    # ---- transitions ---------------------------------------------------------------------------------------------
    def promise(self, epoch: int) -> None:
        """End no more steps before this epoch, if it is later than the installed one."""
        self.promised = max(self.promised, epoch)
        if self.promised > self.epoch:
            self._change(MembershipEvent.PROMISE)

    def install(self, message: Install) -> None:
        self.promised = self.epoch = message.epoch
        # All members of the Install count as alive; the transport reports a lost one again while it is needed.
        self.members, self.alive = message.members, set(message.members)
        self.attempts = ()
        self.newcomers, self.joined, self.fresh = set(message.fresh), message.fresh, self.rank in message.fresh
        behind = self.fresh or self.done < message.step - 1
        self.missing = (message.holder, message.step - 1) if behind else None
        self._change(MembershipEvent.INSTALL_BEHIND if behind else MembershipEvent.INSTALL)

    def caught_up(self, step: int) -> None:
        """The result of `step`, or the state after it, has arrived."""
        if self.missing is not None and self.missing[1] == step:
            self.done, self.missing, self.fresh = step, None, False
            self.newcomers.discard(self.rank)
            self._change(MembershipEvent.CAUGHT_UP)

    def step_done(self) -> None:
        self.done += 1
        self.newcomers.clear()

    def _change(self, event: MembershipEvent) -> None:
        after = TRANSITIONS.get((self.state, event))
        if after is None:
            raise IntegrityError(
                f"membership: member {self.rank} {event.value} while it is {self.state.value}; "
                "run the same gradwire version on every rank"
            )
        self.state = after
