"""One member's plans: numbers are never used twice, a plan is committed when all have it, and used when all vote."""

from __future__ import annotations

import pytest

from gradwire.errors import IntegrityError
from gradwire.plan.membership.messages import NO_VOTE, Ack, Announce, Commit
from gradwire.plan.membership.outgoing import RESEND, OutgoingMessages
from gradwire.plan.membership.plan_versions import PlanVersions, UniqueNumbers
from gradwire.plan.membership.proposal import LEAD, Proposal
from gradwire.types import Plan
from tests.plan.membership_world import star_plan

MEMBERS = (0, 1, 2)
EPOCH = 1


def plans(rank: int = 0) -> PlanVersions:
    return PlanVersions(UniqueNumbers(rank, 4, 1), some_plan(1))


def some_plan(version: int = 0) -> Plan:
    return star_plan(MEMBERS, version)


def committed(versions: PlanVersions, step: int) -> int:
    """Propose a plan, have it acknowledged and committed at this step; returns its version."""
    version = versions.propose(some_plan(), EPOCH, MEMBERS, 0)
    for rank in MEMBERS:
        versions.acknowledged(rank, Ack(EPOCH, version, step))
    versions.messages(step)
    return version


def test_members_never_use_the_same_number_whatever_they_have_seen() -> None:
    given: list[int] = []
    for rank in range(4):
        numbers = UniqueNumbers(rank, 4, 1)
        for seen in (0, 3, 17, 5):
            numbers.seen(seen)
            given += [numbers.next(), numbers.next(above=seen + 2)]
            assert given[-1] > max(seen + 2, given[-2])
    assert len(set(given)) == len(given)


def test_a_proposal_is_announced_to_those_who_have_not_acknowledged_it() -> None:
    proposal = Proposal(EPOCH, 6, MEMBERS, some_plan(1), acked={0})
    assert proposal.plan.version == 6
    announced = proposal.messages(10)
    assert [rank for rank, _ in announced] == [1, 2]
    assert announced[0][1] == Announce(EPOCH, 6, 10, 10 + LEAD, proposal.plan)
    proposal.acked.add(2)
    assert [rank for rank, _ in proposal.messages(10)] == [1]


def test_a_commit_allows_more_steps_each_time_a_vote_fails() -> None:
    proposal = Proposal(EPOCH, 6, MEMBERS, some_plan(), acked=set(MEMBERS))
    assert proposal.messages(10) == [(rank, Commit(EPOCH, 6, 10, 10 + LEAD)) for rank in MEMBERS]
    proposal.messages(11)
    assert proposal.activate == 10 + LEAD
    proposal.messages(12)
    assert proposal.activate == 12 + LEAD + 1


def test_the_last_acknowledgement_of_the_own_proposal_commits_it() -> None:
    versions = plans()
    version = versions.propose(some_plan(), EPOCH, MEMBERS, 0)
    assert versions.proposing
    assert not versions.acknowledged(1, Ack(EPOCH, version, 5))
    assert not versions.acknowledged(2, Ack(EPOCH, version - 1, 5))
    assert not versions.acknowledged(2, Ack(EPOCH + 1, version, 5))
    assert versions.acknowledged(2, Ack(EPOCH, version, 5))
    versions.messages(5)
    assert not versions.acknowledged(2, Ack(EPOCH, version, 5))


def test_a_committed_plan_is_voted_for_in_one_step_and_in_force_after_the_vote() -> None:
    versions = plans()
    version = committed(versions, 5)
    activate = 5 + LEAD
    assert [versions.vote(step) for step in range(5, 9)] == [
        version if step == activate - 1 else NO_VOTE for step in range(5, 9)
    ]
    versions.step_done(version, activate, 0)
    assert versions.plan.version == version
    assert not versions.proposing
    assert versions.messages(activate) == []


def test_without_a_common_vote_the_plan_in_force_stays_and_the_commit_expires() -> None:
    versions = plans()
    version = committed(versions, 5)
    versions.step_done(NO_VOTE, 5 + LEAD, 0)
    assert versions.version == 1
    assert versions.vote(5 + LEAD - 1) == NO_VOTE
    assert versions.messages(5 + LEAD)[0][1] == Commit(EPOCH, version, 5 + LEAD, 5 + 2 * LEAD + 1)


def test_an_announced_plan_is_known_only_if_it_is_newer() -> None:
    versions = plans(rank=1)
    assert not versions.announced(Announce(EPOCH, 1, 3, 5, some_plan(1)))
    assert versions.announced(Announce(EPOCH, 8, 3, 5, some_plan(8)))
    assert versions.numbers.next() > 8
    versions.committed(Commit(EPOCH, 7, 3, 5))
    assert versions.vote(4) == NO_VOTE
    versions.committed(Commit(EPOCH, 8, 3, 5))
    assert versions.vote(4) == 8


def test_a_vote_for_an_unknown_plan_is_an_integrity_error() -> None:
    with pytest.raises(IntegrityError, match="plan 9, which member 2 never received"):
        plans(rank=2).step_done(9, 5, 2)


def test_a_new_epoch_voids_proposals_and_commits() -> None:
    versions = plans()
    version = committed(versions, 5)
    versions.install(some_plan(20), 20)
    assert versions.plan.version == 20
    assert versions.vote(5 + LEAD - 1) == NO_VOTE
    assert not versions.proposing
    assert versions.messages(6) == []
    assert versions.numbers.next() > max(20, version)


def test_new_messages_are_sent_once_and_unanswered_ones_after_a_pause() -> None:
    outgoing = OutgoingMessages()
    outgoing.send(1, Ack(EPOCH, 6, 5))
    assert outgoing.drain() == [(1, Ack(EPOCH, 6, 5))]
    assert outgoing.drain() == []
    assert outgoing.due(100.0)
    assert not outgoing.due(100.0 + RESEND / 2)
    assert outgoing.due(100.0 + RESEND)
    outgoing.resend(100.0 + RESEND)
    assert outgoing.due(100.0 + RESEND)
