"""A member's state between epochs: only the transitions of the table, and no step while it is stopped."""

from __future__ import annotations

import pytest

from gradwire.plan.membership.member import Member
from gradwire.plan.membership.member_state import MemberState
from gradwire.plan.membership.messages import Ack, Commit, Install, Ready, Regroup
from gradwire.plan.membership.plan_versions import PlanVersions, UniqueNumbers
from tests.plan.membership_world import star_plan

BOTH = (0, 1)


def member() -> Member:
    return Member(1, BOTH, star_plan(BOTH, 1), star_plan, stride=8)


def install(epoch: int, step: int, fresh: tuple[int, ...] = ()) -> Install:
    return Install(epoch, epoch, step, BOTH, star_plan(BOTH, epoch), 0, fresh)


def test_a_member_that_answered_a_regroup_runs_no_step_until_the_epoch_is_installed() -> None:
    one = member()
    tag = one.begin_step()
    assert tag is not None
    one.handle(0, Regroup(8, 1, -1, BOTH), 0.0)
    assert one.membership.state is MemberState.PROMISED
    assert one.begin_step() is None
    assert not one.complete_step(tag, 0)
    assert [type(message) for _, message in one.poll(0.0)] == [Ready]
    one.handle(0, install(8, 0), 0.0)
    assert one.membership.state is MemberState.RUNNING
    assert not one.complete_step(tag, 0), "the step was begun in the old epoch"
    assert one.begin_step() is not None


@pytest.mark.parametrize("fresh", [(), (1,)])
def test_a_member_that_lacks_a_result_or_the_state_is_behind_until_it_has_it(fresh: tuple[int, ...]) -> None:
    one = member()
    one.handle(0, Regroup(8, 1, 0, BOTH), 0.0)
    one.handle(0, install(8, 4, fresh), 0.0)
    assert one.membership.state is MemberState.BEHIND
    assert one.membership.missing == (0, 3)
    one.caught_up(2)
    assert one.membership.state is MemberState.BEHIND, "another step's result"
    one.caught_up(3)
    assert (one.membership.state, one.step) == (MemberState.RUNNING, 4)


def test_a_result_that_arrives_during_the_next_regroup_counts_but_starts_no_step() -> None:
    one = member()
    one.handle(0, Regroup(8, 1, 0, BOTH), 0.0)
    one.handle(0, install(8, 4), 0.0)
    one.handle(0, Regroup(16, 8, 3, BOTH), 0.0)
    one.caught_up(3)
    assert (one.membership.state, one.done) == (MemberState.PROMISED, 3)


def test_a_process_that_replaces_a_lost_one_is_behind_and_connected_to_nobody() -> None:
    one = Member(2, BOTH, star_plan(BOTH, 1), star_plan)
    assert one.membership.state is MemberState.BEHIND
    assert one.membership.fresh
    assert not one.membership.connected
    assert one.begin_step() is None


def test_numbers_are_unique_per_rank_and_never_used_twice() -> None:
    first, second = (UniqueNumbers(rank, 8, 1) for rank in (0, 1))
    numbers = [one.next(above) for one in (first, second) for above in (0, 0, 30)]
    assert len(set(numbers)) == len(numbers)
    assert {number % 8 for number in numbers[:3]} == {0}
    first.seen(100)
    assert first.next() == 104


def test_a_commit_of_an_unknown_or_old_plan_is_no_vote() -> None:
    versions = PlanVersions(UniqueNumbers(0, 8, 1), star_plan(BOTH, 1))
    for version in (1, 9):
        versions.committed(Commit(0, version, 0, 2))
    assert versions.vote(1) == 0
    proposed = versions.propose(star_plan(BOTH, 1), 0, BOTH, 0)
    assert not versions.acknowledged(1, Ack(0, proposed + 1, 0))
    assert versions.acknowledged(1, Ack(0, proposed, 0))
    versions.committed(Commit(0, proposed, 0, 2))
    assert versions.vote(1) == proposed
