"""Member state: the states of a member between epochs, and the transitions between them.

The names are those of the Promela model (formal/policy.pml); a test compares both.
"""

from __future__ import annotations

from enum import Enum


class MemberState(Enum):
    """RUNNING: steps begin and end in the installed epoch.
    PROMISED: has answered (or leads) the regroup for a later epoch; no step of the old one may begin or end.
    BEHIND: lacks the last result or the replica state of its epoch, or is in no epoch yet.
    """

    RUNNING = "RUNNING"
    PROMISED = "PROMISED"
    BEHIND = "BEHIND"


class MembershipEvent(Enum):
    """What changes the state."""

    PROMISE = "promises a later epoch"
    INSTALL = "installs an epoch and has everything it needs"
    INSTALL_BEHIND = "installs an epoch and lacks a result or the state"
    CAUGHT_UP = "has received what it lacked"


TRANSITIONS: dict[tuple[MemberState, MembershipEvent], MemberState] = {
    (MemberState.RUNNING, MembershipEvent.PROMISE): MemberState.PROMISED,
    (MemberState.BEHIND, MembershipEvent.PROMISE): MemberState.PROMISED,
    (MemberState.PROMISED, MembershipEvent.PROMISE): MemberState.PROMISED,
    (MemberState.PROMISED, MembershipEvent.INSTALL): MemberState.RUNNING,
    (MemberState.PROMISED, MembershipEvent.INSTALL_BEHIND): MemberState.BEHIND,
    # An Install for the process that this one replaces: this one has promised nothing.
    (MemberState.BEHIND, MembershipEvent.INSTALL): MemberState.RUNNING,
    (MemberState.BEHIND, MembershipEvent.INSTALL_BEHIND): MemberState.BEHIND,
    (MemberState.BEHIND, MembershipEvent.CAUGHT_UP): MemberState.RUNNING,
    # Results of the old epoch that arrive during a regroup still count.
    (MemberState.PROMISED, MembershipEvent.CAUGHT_UP): MemberState.PROMISED,
}
