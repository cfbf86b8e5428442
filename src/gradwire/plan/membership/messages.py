"""Membership messages: what members send each other about plans and epochs. Each has epoch, plan version and step.

A Tag is part of gradient data. `vote` is the version that its sender is ready to use from the next step on; votes are
merged on the way up the trees (`merged`): if two differ, the plan does not change. All other messages are sent off the
critical path and may be lost, late, duplicated or reordered.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.types import Plan

# No version has this number. It means "not ready for a new plan", and is what different votes merge to.
NO_VOTE = 0


@dataclass(frozen=True, slots=True)
class Tag:
    """Part of every gradient frame."""

    epoch: int
    version: int
    step: int
    vote: int = NO_VOTE


@dataclass(frozen=True, slots=True)
class Announce:
    """Proposal of a new plan, for step `activate` at the earliest."""

    epoch: int
    version: int
    step: int
    activate: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class Ack:
    """The sender has stored the plan of this version."""

    epoch: int
    version: int
    step: int


@dataclass(frozen=True, slots=True)
class Commit:
    """All members have acknowledged the plan; vote for it in step `activate - 1`."""

    epoch: int
    version: int
    step: int
    activate: int


@dataclass(frozen=True, slots=True)
class Regroup:
    """A member was lost or wants to join: complete no step before epoch `epoch`, and answer with your state."""

    epoch: int
    version: int
    step: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Attempt:
    """An epoch that a member has promised and whose outcome it does not know: its leader may have installed it."""

    epoch: int
    leader: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ready:
    """Answer to Regroup: last step done (`step`), epoch and members of the last Install. `fresh`: has no replica state.

    `joined` are the members that had none when that Install was made.
    """

    epoch: int
    version: int
    step: int
    installed: int
    members: tuple[int, ...]
    fresh: bool = False
    attempts: tuple[Attempt, ...] = ()
    joined: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Install:
    """The new epoch: its members, its plan, its first step, and which member holds the result of the step before.

    `fresh` are members that must receive the full replica state: new ones, and those that missed an epoch.
    """

    epoch: int
    version: int
    step: int
    members: tuple[int, ...]
    plan: Plan
    holder: int
    fresh: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Rejoin:
    """Request to be included in an epoch. The sender has `waited` this many seconds: it lost others, or they lost it.

    `epoch` is the highest that it has promised, `installed` its current one, `reach` the peers that it is connected to.
    `fresh`: it has no replica state.
    """

    epoch: int
    version: int
    step: int
    installed: int
    reach: tuple[int, ...]
    waited: float
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Leave:
    """The sender has done `step` and leaves: it takes part in no later step."""

    epoch: int
    version: int
    step: int


Message = Announce | Ack | Commit | Regroup | Ready | Install | Rejoin | Leave


def merged(first: int, second: int) -> int:
    """Two votes as one: their value if equal, else NO_VOTE. Associative and commutative, so any tree may merge."""
    return first if first == second else NO_VOTE
