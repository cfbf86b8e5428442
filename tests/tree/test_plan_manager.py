"""Members agree on a new plan while they train: no step mixes versions; slow links and lost peers are dealt with."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from gradwire.errors import LinkError
from gradwire.plan.job import ReductionJob
from gradwire.plan.matrix import Matrix
from gradwire.plan.membership.control_messages import LinkReport, Probe, pack, unpack
from gradwire.plan.membership.link_estimates import LEAST_BYTES, LinkObservation
from gradwire.plan.membership.messages import Announce, Install
from gradwire.plan.membership.replan import ReplanConfig
from gradwire.plan.planners.registry import DEFAULT, make_plan
from gradwire.tree.executor_config import ExecutorConfig
from gradwire.tree.plan_manager import PlanManagerConfig
from gradwire.types import Plan
from tests.tree.grid import LIMIT, FakeNet, Grid, Planning, ltp_wires

NUMELS = (60_000,)
JOB = ReductionJob(4 * sum(NUMELS), 32 << 10)


def uniform(size: int, rate: float = 1e7) -> Matrix:
    return Matrix.of(np.full((size, size), rate), 0.02)


def planning(size: int, planner: str, interval: float = 30.0, probe: bool = True, aware: bool = True) -> Planning:
    config = PlanManagerConfig(job=JOB, replan=ReplanConfig(planner, interval=interval), probe=probe)
    return Planning(uniform(size), config, aware)


def test_control_messages_survive_the_wire() -> None:
    plan = make_plan(uniform(4), JOB)
    relayed = Plan(7, "x", plan.trees, 0.5, "why", {(0, 1): ((0, 2, 1),)}, {(0, 3): (0, 1, 3)}, 9, "int8")
    for message in (
        Announce(0, 7, 1, 3, relayed),
        Install(2, 7, 1, (0, 1, 2), relayed, 0),
        LinkReport((LinkObservation(0, 1, 1e6, None, LEAST_BYTES, 0.0),)),
    ):
        assert unpack(pack(message)) == message


def test_members_change_plans_at_the_same_step_while_they_train() -> None:
    first = make_plan(uniform(3), JOB, "star")
    second = make_plan(uniform(3), JOB, "ring")
    with ltp_wires(3) as wires:
        grid = Grid(wires, first, NUMELS, planning=planning(3, "star", aware=False))
        grid.start()
        with grid:
            versions = []
            grid.executors[0].call_soon(lambda: grid.executors[0].member.propose(second, grid.executors[0].now()))
            for step in range(40):
                gradients = [[torch.full((NUMELS[0],), float(rank + step))] for rank in range(3)]
                results = grid.run(gradients, "off")
                for own in results:
                    assert torch.allclose(own[0], torch.full((NUMELS[0],), 1.0 + step))
                versions.append({executor.member.version for executor in grid.executors})
                assert len(versions[-1]) == 1
                time.sleep(0.02)
            assert versions[0] != versions[-1], "the new plan never came into force"
            assert {executor.member.plan.planner for executor in grid.executors} == {"ring"}


def test_a_level_that_the_coordinator_requests_holds_for_all_members_from_the_same_step_on() -> None:
    first = replace(make_plan(uniform(3), JOB, "star"), level="off")
    with ltp_wires(3) as wires:
        grid = Grid(wires, first, NUMELS, planning=planning(3, "star", aware=False))
        grid.start()
        grid.managers[2].request_level("fp16", "only the coordinator proposes levels")
        grid.managers[0].request_level("int8", "fewer bytes")
        with grid:
            levels = []
            for step in range(40):
                gradients = [[torch.full((NUMELS[0],), float(rank + step))] for rank in range(3)]
                for own in grid.run(gradients, "fp16"):
                    assert torch.allclose(own[0], torch.full((NUMELS[0],), 1.0 + step), rtol=0.02)
                levels.append({executor.member.plan.level for executor in grid.executors})
                assert len(levels[-1]) == 1
                time.sleep(0.02)
            assert {str(executor.used_level) for executor in grid.executors} == {"int8"}
            assert levels[0] == {"off"}
            assert levels[-1] == {"int8"}, "the requested level never came into force"
            assert {executor.member.plan.planner for executor in grid.executors} == {"star"}


def test_the_coordinator_plans_around_a_link_that_was_reported_slow() -> None:
    plan = make_plan(uniform(4), JOB, "loadaware")
    with ltp_wires(4) as wires:
        grid = Grid(wires, plan, NUMELS, planning=planning(4, "loadaware", interval=0.0, probe=False))
        # Nothing but our report may speak of links here: loopback is much faster than the stated matrix.
        for manager in grid.managers:
            manager.link_monitor.observe = lambda now: ()  # type: ignore[method-assign]
        grid.start()
        slow = tuple(LinkObservation(3, other, 1e5, 0.02, LEAST_BYTES, 0.0) for other in (1, 2))
        with grid:
            grid.executors[3].call_soon(lambda: grid.managers[3].channel.send(0, LinkReport(slow)))
            deadline = time.monotonic() + LIMIT
            while grid.executors[3].member.version == plan.version and time.monotonic() < deadline:
                gradients = [[torch.ones(NUMELS[0])] for _ in range(4)]
                grid.run(gradients, "off")
                time.sleep(0.02)
            used = {edge for tree in grid.executors[3].member.plan.trees for edge in tree.parents.items()}
        for manager in grid.managers:
            manager.close()
    assert grid.executors[3].member.version != plan.version
    assert not used & {(3, 1), (3, 2)}


def test_after_a_regroup_of_the_same_members_the_plan_in_force_is_judged() -> None:
    """The new epoch's plan knows nothing of the slow links; the one before it did."""
    uninformed = make_plan(uniform(4), JOB, "loadaware")
    with ltp_wires(4) as wires:
        settings = planning(4, "loadaware", interval=0.0, probe=False)
        grid = Grid(wires, uninformed, NUMELS, ExecutorConfig(elastic=True), planning=settings)
        for manager in grid.managers:
            manager.link_monitor.observe = lambda now: ()  # type: ignore[method-assign]
        grid.start()
        slow = tuple(LinkObservation(3, other, 1e5, 0.02, LEAST_BYTES, 0.0) for other in (1, 2))
        first, member = grid.executors[0], grid.executors[0].member

        def changed(before: int) -> bool:
            deadline = time.monotonic() + LIMIT
            while member.version == before and time.monotonic() < deadline:
                grid.run([[torch.ones(NUMELS[0])] for _ in range(4)], "off")
                time.sleep(0.02)
            return member.version != before

        with grid:
            grid.executors[3].call_soon(lambda: grid.managers[3].channel.send(0, LinkReport(slow)))
            assert changed(uninformed.version)
            assert member.plan.trees != uninformed.trees
            informed = member.version
            first.call_soon(lambda: member.admit(1, first.now()))
            assert changed(informed)
            assert member.plan.trees == uninformed.trees
            assert changed(member.version), "the uninformed plan stays in force"
            assert member.plan.trees != uninformed.trees
        for manager in grid.managers:
            manager.close()


def test_a_plan_made_for_members_of_an_epoch_before_is_dropped() -> None:
    plan = make_plan(uniform(2), JOB, "star")
    net = FakeNet()
    wires = [net.wire(rank) for rank in range(2)]
    grid = Grid(wires, plan, NUMELS, planning=planning(2, "star", probe=False))
    manager, member = grid.managers[0], grid.executors[0].member
    manager._new_plans.put((member.epoch - 1, plan, "made too late"))
    manager._coordinate(0.0)
    assert not member.proposing
    manager._new_plans.put((member.epoch, plan, "made in time"))
    manager._coordinate(0.0)
    assert member.proposing
    grid.close()


def test_who_coordinates_again_does_not_begin_with_the_level_it_requested_before() -> None:
    plan, net = replace(make_plan(uniform(2), JOB, "star"), level="off"), FakeNet()
    wires = [net.wire(rank) for rank in range(2)]
    grid = Grid(wires, plan, NUMELS, planning=planning(2, "star", aware=False))
    manager, member = grid.managers[0], grid.executors[0].member
    manager.request_level("int8", "the network was slow then")
    member.membership.alive.discard(1)  # disconnected; the other rank may coordinate meanwhile
    manager.tick(0.1)
    member.membership.alive.add(1)
    manager.tick(0.2)
    assert not member.proposing
    manager.request_level("int8", "the network is slow")
    manager.tick(0.3)
    assert member.proposing
    grid.close()


def test_what_members_carry_in_all_is_not_forgotten_when_links_are_measured() -> None:
    known = Matrix.of(np.full((3, 3), 1e7), 0.02, up=[1e6, 2e6, 3e6], down=4e6)
    report = LinkReport((LinkObservation(0, 2, 5e6, 0.02, LEAST_BYTES, 0.0),))
    config = PlanManagerConfig(job=JOB, replan=ReplanConfig())
    grids = [
        Grid([FakeNet().wire(0)] * 3, make_plan(known, JOB), NUMELS, planning=Planning(known, config, aware))
        for aware in (True, False)
    ]
    manager, unaware = (grid.managers[0] for grid in grids)
    assert manager._network.matrix((0, 2), 1.0).rate[0, 1] == 1e7
    manager.channel.dispatch(1, report)
    measured = manager._network.matrix((0, 2), 1.0)
    assert measured.rate[0, 1] == 5e6
    assert measured.up.tolist() == [1e6, 3e6]
    assert measured.down.tolist() == [4e6, 4e6]
    unaware.channel.dispatch(1, report)
    assert unaware._network.matrix((0, 2), 1.0).rate[0, 1] == 1e7
    for grid in grids:
        grid.close()


@pytest.mark.parametrize("idle", [True, False])
def test_no_receive_is_posted_for_a_probe_that_is_not_sent(idle: bool) -> None:
    net = FakeNet()
    wires = [net.wire(rank) for rank in range(3)]
    grid = Grid(wires, make_plan(uniform(3), JOB), NUMELS, planning=planning(3, DEFAULT, aware=False))
    for manager in grid.managers:
        manager.channel.listen(manager._member.membership.connected)
        manager.link_monitor.idle = lambda peer, now, within: idle  # type: ignore[method-assign]
    for _ in range(3):  # two pairs at a time
        grid.managers[0]._request_probes(100.0)
        for executor in grid.executors * 10:
            executor.frame_io.poll(0.02)
    assert [executor.frame_io.sent_bytes.total() > LEAST_BYTES for executor in grid.executors] == [idle] * 3
    listening = [len(manager._member.membership.connected) for manager in grid.managers]
    assert [len(executor.frame_io._posted) for executor in grid.executors] == listening
    grid.close()
    assert not any(executor.frame_io._posted for executor in grid.executors)


def test_a_link_to_a_member_that_left_is_not_probed() -> None:
    net = FakeNet()
    wires = [net.wire(rank) for rank in range(2)]
    grid = Grid(wires, make_plan(uniform(2), JOB), NUMELS, planning=planning(2, DEFAULT))
    grid.executors[0].frame_io.left.add(1)
    grid.managers[0].channel.dispatch(1, Probe(0, 1))
    assert not net.sends
    grid.close()


def test_a_lost_peer_is_an_error_on_every_rank() -> None:
    plan = make_plan(uniform(3), JOB, "star")
    gradients = [[torch.ones(NUMELS[0])] for _ in range(3)]
    with ltp_wires(3) as wires:
        grid = Grid(wires, plan, NUMELS, planning=planning(3, "star", aware=False))
        grid.start()
        with grid:
            grid.run(gradients, "off")
            wires[2].close()
            with pytest.raises(LinkError, match="rank"):
                grid.run(gradients, "off")
            assert len(grid.errors) == 3


@pytest.mark.parametrize("leaver", [0, 3])
def test_the_others_continue_without_a_lost_member(leaver: int) -> None:
    """Rank 0 is the coordinator: another one takes over."""
    ranks = range(4)
    plan = make_plan(uniform(4), JOB, "loadaware")
    replan = lambda members, version: make_plan(uniform(4).only(members), JOB, "loadaware", version)  # noqa: E731
    with ltp_wires(4) as wires:
        settings = planning(4, "loadaware", aware=False)
        grid = Grid(wires, plan, NUMELS, ExecutorConfig(elastic=True), replan, settings)
        grid.start()
        with grid:
            gradients = [[torch.full((NUMELS[0],), float(rank))] for rank in ranks]
            for _ in range(2):
                assert grid.run(gradients, "off")[1][0][0] == 1.5
            grid.leave(leaver)
            left = [rank for rank in ranks if rank != leaver]
            mean = sum(left) / 3
            for _ in range(3):
                results = grid.run(gradients, "off")
                for rank in left:
                    assert torch.equal(results[rank][0], results[left[0]][0])
                    torch.testing.assert_close(results[rank][0], torch.full((NUMELS[0],), mean))
            assert {grid.executors[rank].member.members for rank in left} == {tuple(left)}
            lost = [grid.listeners[rank].losses for rank in left]
            assert all(set(peers) <= {leaver} for peers in lost)
            assert any(lost)
            assert {grid.executors[rank].member.coordinator for rank in left} == {left[0]}
