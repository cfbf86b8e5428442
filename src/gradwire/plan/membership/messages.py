"""What members say to each other about plans. All frozen; each carries the epoch, the plan version and a step.

A Tag is stamped on gradient data. `vote` is the version its sender is ready to use from the next step on; votes are
merged on the way up the trees (`merged`): where two differ, nothing changes. Everything else travels off the critical
path and may be lost, late, doubled or reordered.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.types import Plan

# No version has this number: "I am not ready for anything new", and what different votes merge to.
NO_VOTE = 0


@dataclass(frozen=True, slots=True)
class Tag:
    """On every piece of gradient."""

    epoch: int
    version: int
    step: int
    vote: int = NO_VOTE


@dataclass(frozen=True, slots=True)
class Announce:
    """A new plan, meant for the step `activate`."""

    epoch: int
    version: int
    step: int
    activate: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class Ack:
    """The sender holds the plan of this version."""

    epoch: int
    version: int
    step: int


@dataclass(frozen=True, slots=True)
class Commit:
    """All members hold the plan; vote for it in step `activate - 1`."""

    epoch: int
    version: int
    step: int
    activate: int


@dataclass(frozen=True, slots=True)
class Regroup:
    """Somebody was lost or wants to join: finish nothing more before the epoch `epoch`, and say where you are."""

    epoch: int
    version: int
    step: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Attempt:
    """An epoch that a member promised itself to and heard no more of: its leader may have installed it."""

    epoch: int
    leader: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ready:
    """Answer to Regroup: last step done (`step`), epoch and members of the last Install. `fresh`: holds no state.

    `joined` are those who held none when that Install was made.
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
    """The new epoch: its members, its plan, the step it starts with, and who holds the result of the step before.

    `fresh` are members that must be handed everything: newcomers, and those that an epoch went on without.
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
    """The sender waits for an epoch that it is in, for `adrift` seconds now: it lost others, or they lost it.

    `epoch` is the highest it promised to, `installed` the one it is in, `reach` whom it can talk to. `fresh`: holds no
    state.
    """

    epoch: int
    version: int
    step: int
    installed: int
    reach: tuple[int, ...]
    adrift: float
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Leave:
    """The sender has done `step` and takes part in none after it."""

    epoch: int
    version: int
    step: int


Message = Announce | Ack | Commit | Regroup | Ready | Install | Rejoin | Leave


def merged(first: int, second: int) -> int:
    """Two votes as one: the same, or nothing. Order and grouping do not matter, so any tree may merge them."""
    return first if first == second else NO_VOTE
