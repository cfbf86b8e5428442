"""Membership listener: receives what happens to plans and members; by default it ignores everything."""

from __future__ import annotations

from gradwire.types import Plan


class MembershipListener:
    """Called on the executor's thread."""

    def plan_changed(self, plan: Plan, why: str) -> None:
        """A new plan is in force; called at the coordinator only."""

    def lost(self, peer: int, why: str) -> None:
        """The connection to a member was lost."""

    def rejoined(self, member: int, how: str) -> None:
        """A member, maybe this one, takes part again."""
