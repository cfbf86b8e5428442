"""The state of a member changes by the table alone."""

from __future__ import annotations

import pytest

from gradwire.errors import IntegrityError
from gradwire.plan.membership.member_state import MemberState
from gradwire.plan.membership.membership import Membership
from gradwire.plan.membership.messages import Install
from tests.plan.membership_world import star_plan


def install(epoch: int, members: tuple[int, ...], step: int) -> Install:
    return Install(epoch, 1, step, members, star_plan(members, 1), holder=members[0])


def test_an_epoch_that_was_not_promised_is_an_integrity_error() -> None:
    member = Membership(0, range(3))
    with pytest.raises(IntegrityError, match=r"member 0 installs an epoch .* while it is RUNNING; run the same"):
        member.install(install(4, (0, 1), 0))


def test_a_promise_stops_steps_until_the_epoch_is_installed() -> None:
    member = Membership(0, range(3))
    member.promise(4)
    assert member.stopped
    assert member.state is MemberState.PROMISED
    member.install(install(4, (0, 1), 0))
    assert member.state is MemberState.RUNNING
    assert member.members == (0, 1)
