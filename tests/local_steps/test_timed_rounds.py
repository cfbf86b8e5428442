"""Rounds by time: unequal ranks end them together, weighted by their steps, against a reference in plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from gradwire.config import OuterConfig
from gradwire.errors import ConfigError, LinkError
from gradwire.local_steps import round_state
from gradwire.local_steps.round_agreement import RankProgress
from gradwire.local_steps.timed_rounds import LEAST_WAIT, RoundTiming
from tests.local_steps.timed_worlds import Rank, TimedWorld, duration, flat, gradient, net

AVERAGE = OuterConfig(kind="average")
SPEEDS: dict[str, list[Any]] = {
    "two, one three times slower": [1.0, 3.0],
    "two, a step longer than a round": [2.5, 13.0],
    "two, one with a pause": [[1.0, 1.0, 7.0], 1.5],
    "three": [1.0, 2.5, 4.0],
    "three, alike": [2.0, 2.0, 2.0],
}


def reference(speeds: Sequence[Any], seconds: float, rounds: int) -> list[Tensor]:
    """The global weights after each round: a mean weighted by steps, and SGD with Nesterov momentum."""
    shared, world, made, found = flat(net()).requires_grad_(), len(speeds), [0] * len(speeds), []
    outer = torch.optim.SGD([shared], lr=0.7, momentum=0.6, nesterov=True)
    for _ in range(rounds):
        own, steps = [shared.detach().clone() for _ in speeds], [0] * world
        for rank, speed in enumerate(speeds):
            passed = 0.0
            while passed < seconds:
                passed += duration(speed, made[rank])
                own[rank] -= gradient(rank, made[rank])
                made[rank], steps[rank] = made[rank] + 1, steps[rank] + 1
        parts = [(shared.detach() - own[rank]) * (world * (steps[rank] / sum(steps))) for rank in range(world)]
        shared.grad = torch.stack([part * (1.0 / world) for part in parts]).sum(0)
        outer.step()
        found.append(shared.detach().clone())
    return found


@pytest.mark.parametrize("speeds", SPEEDS.values(), ids=SPEEDS.keys())
def test_global_weights_are_those_of_the_reference_to_the_bit(speeds: list[Any]) -> None:
    world = TimedWorld(speeds)
    world.train(5)
    for one in world.ranks:
        assert all(map(torch.equal, one.seen, reference(speeds, 10.0, 5)))
        assert torch.equal(flat(one.module), one.seen[-1])
    world.close()


@pytest.mark.parametrize("level", ["off", "int8", "topk:0.05", "sharedk:0.1", "lowrank:2"])
@pytest.mark.parametrize(("fragments", "delay"), [(1, 0), (3, 0), (3, 1), (1, 2)])
def test_replicas_are_bit_identical_after_every_exchange(level: str, fragments: int, delay: int) -> None:
    generator = torch.Generator().manual_seed(fragments)
    speeds = [torch.rand(50, generator=generator).mul(4.0).add(0.1).tolist() for _ in range(3)]
    world = TimedWorld(speeds, level, fragments=fragments, delay=delay)
    world.train(3 * fragments)
    first, *others = world.ranks
    assert len(first.seen) == 3 * fragments
    for one in others:
        assert all(map(torch.equal, first.seen, one.seen))
    assert len({one.rounds.global_steps for one in world.ranks}) == 1
    ends = [event for event in first.events if event.fragment in (None, fragments - 1)]
    assert first.rounds.global_steps == sum(sum(event.rank_steps) for event in ends)
    world.close()


def test_what_a_sparse_level_leaves_out_waits_in_residuals_as_it_was_weighted() -> None:
    """Global weights and the mean of the residuals together are where averaging without compression would be."""
    world = TimedWorld([1.0, 3.0], "topk:0.05", outer=AVERAGE)
    world.train(4)
    exact = TimedWorld([1.0, 3.0], "off", outer=AVERAGE)
    exact.train(4)
    names = [name for name, _ in world.modules[0].named_parameters()]
    residuals = world.sessions.residuals()
    left = torch.cat([residuals[name].flatten() for name in names]) / 2
    assert left.norm() > 0
    assert torch.allclose(world.ranks[0].seen[-1].double() - left, exact.ranks[0].seen[-1].double(), atol=1e-5)
    world.close()
    exact.close()


def test_events_have_the_steps_of_all_ranks_the_own_weight_and_the_wait() -> None:
    world = TimedWorld([1.0, 2.5, 5.0])
    world.train(2)
    for one, share in zip(world.ranks, (10 / 16, 4 / 16, 2 / 16), strict=True):
        event = one.events[-1]
        assert (event.rank_steps, event.weight) == ((10, 4, 2), share)
        assert (event.local_steps, event.sync_seconds, event.sync_every) == ((10, 4, 2)[one.rank], 10.0, 0)
        assert (event.rank_wait, event.reason) == (0.0, "10 s of local steps have passed")
    assert [one.rounds.global_steps for one in world.ranks] == [32] * 3
    world.close()


def test_each_fragment_has_its_part_of_the_seconds_and_the_weights_of_its_own_steps() -> None:
    world = TimedWorld([1.0, 3.0], seconds=6.0, fragments=3)
    world.train(4)
    found = [(event.fragment, event.rank_steps) for event in world.ranks[0].events]
    assert found == [(0, (2, 1)), (1, (4, 2)), (2, (6, 3)), (0, (6, 3))]
    assert world.ranks[0].events[0].reason == "2 s of local steps have passed; fragment 1 of 3 is sent"
    world.close()


def test_a_rank_whose_steps_were_all_skipped_has_weight_0() -> None:
    world = TimedWorld([2.0, 2.0], outer=AVERAGE)
    world.each(lambda one: [one.step(made=one.rank == 0) for _ in range(5)] and None)
    expected = flat(net())
    for step in range(5):
        expected = expected - gradient(0, step)
    assert torch.allclose(world.ranks[1].seen[0], expected, atol=1e-6)
    assert [one.events[0].weight for one in world.ranks] == [1.0, 0.0]
    world.close()


def test_without_any_step_nothing_changes() -> None:
    world = TimedWorld([2.0, 2.0])
    world.each(lambda one: [one.step(made=False) for _ in range(5)] and None)
    assert torch.equal(world.ranks[0].seen[0], flat(net()))
    world.close()


def test_weights_are_samples_where_ranks_count_them() -> None:
    world = TimedWorld([2.0, 5.0])
    world.each(lambda one: [one.step(samples=(8, 60)[one.rank]) for _ in range((5, 2)[one.rank])] and None)
    assert [one.events[0].weight for one in world.ranks] == [40 / 160, 120 / 160]
    assert world.ranks[0].events[0].rank_steps == (5, 2)
    world.close()


def test_samples_on_some_ranks_only_are_refused_on_all_of_them() -> None:
    world = TimedWorld([5.0, 5.0])
    errors = [""] * 2

    def work(one: Rank) -> None:
        one.step(samples=8 * one.rank)
        with pytest.raises(ConfigError) as error:
            one.step(samples=8 * one.rank)
        errors[one.rank] = str(error.value)

    world.each(work)
    assert errors[0] == errors[1]
    assert errors[0].startswith("count_samples: rank 0 counted no samples in this round")
    world.close()


@pytest.mark.parametrize("fragments", [1, 3])
def test_a_rank_that_has_finished_takes_part_with_weight_0_until_all_have(fragments: int) -> None:
    """Rank 0 makes four steps and ends, rank 1 makes forty: all of them are in the weights of both."""
    world = TimedWorld([1.0, 1.0], fragments=fragments, outer=AVERAGE)

    def work(one: Rank) -> None:
        for _ in range((4, 40)[one.rank]):
            one.step()
        one.finish()

    world.each(work)
    first, second = world.ranks
    assert torch.equal(flat(first.module), flat(second.module))
    assert first.events[-1].reason == "the test ends it"
    assert [event.rank_steps for event in first.events] == [event.rank_steps for event in second.events]
    assert [one.rounds.global_steps for one in world.ranks] == [44, 44]
    assert first.events[-2].weight == 0.0
    assert not first.rounds.pending
    before = len(first.events)
    world.each(lambda one: one.finish())
    assert len(first.events) == before, "nothing is left to synchronise"
    world.close()


class ScriptedAgreement:
    """Answers by a script whether all ranks are here, and records for how long this rank was willing to wait."""

    rank = 0

    def __init__(self, answers: list[bool]) -> None:
        self.answers, self.limits, self.announced = answers, list[float | None](), False

    def announce(self) -> None:
        self.announced = True

    def all_here(self, seconds: float | None) -> bool:
        self.limits.append(seconds)
        return self.answers.pop(0)

    def agree(self, own: RankProgress) -> list[RankProgress]:
        self.announced = False
        return [own, RankProgress((1,), (0,))]

    def close(self) -> None:
        """Nothing is open."""


def test_a_rank_stands_still_for_a_share_of_the_round_and_then_makes_further_steps() -> None:
    """The other rank's step takes 14 s: this one waits once, for a tenth of the round at most, and makes four more."""
    world = TimedWorld([1.0])
    (one,) = world.ranks
    agreement = ScriptedAgreement([False, False, False, False, True])
    one.rounds.agreement = agreement  # type: ignore[assignment]
    for _ in range(14):
        one.step()
    assert agreement.limits == [1.0, 0.0, 0.0, 0.0, 0.0]
    (event,) = one.events
    assert (event.rank_steps, event.weight) == ((14, 1), 14 / 15)
    world.close()


def test_the_last_rank_waits_long_enough_to_read_what_has_arrived() -> None:
    assert RoundTiming(10.0, 0.25).longest_wait(5.0) == 1.25
    assert RoundTiming(10.0, 0.0).longest_wait(5.0) == LEAST_WAIT


def test_a_loaded_round_continues_as_the_saved_one() -> None:
    speeds, states = [1.0, 3.0], dict[int, Any]()
    world = TimedWorld(speeds)

    def until(steps: Sequence[int]) -> Any:
        return lambda one: [one.step() for _ in range(steps[one.rank] - one.rounds.steps)] and None

    world.each(until((15, 5)))
    for one in world.ranks:
        states[one.rank] = {round_state.KEY: round_state.state_of(one.rounds)}
    world.each(until((26, 9)))
    expected = [flat(one.module) for one in world.ranks]
    world.close()
    other = TimedWorld(speeds)
    for one in other.ranks:
        one.clock.advance(500.0)
        round_state.load(one.rounds, [states[one.rank]])
        assert (one.rounds.made, one.rounds.global_steps) == ([(5, 1)[one.rank]], 14)
    other.each(until((26, 9)))
    assert all(map(torch.equal, [flat(one.module) for one in other.ranks], expected))
    other.close()


def test_another_number_of_ranks_continues_from_the_mean_weighted_by_steps() -> None:
    world = TimedWorld([1.0, 3.0], seconds=100.0)
    world.each(lambda one: [one.step() for _ in range((9, 3)[one.rank])] and None)
    states = [{round_state.KEY: round_state.state_of(one.rounds)} for one in world.ranks]
    expected = 0.75 * flat(world.modules[0]) + 0.25 * flat(world.modules[1])
    world.close()
    other = TimedWorld([1.0])
    round_state.check_states(other.ranks[0].rounds, states)
    round_state.load(other.ranks[0].rounds, states)
    assert torch.allclose(flat(other.modules[0]), expected, atol=1e-6)
    assert other.ranks[0].rounds.made == [9]
    other.close()


def test_steps_whose_exchange_failed_still_count_as_this_ranks_own() -> None:
    """So a state that is saved then has the rank's own weights."""
    world = TimedWorld([5.0])
    (one,) = world.ranks

    exchange = one.rounds.exchange

    def fail() -> None:
        if exchange.flight is not None:
            exchange.flight = None
            raise LinkError("a peer is gone")

    one.step()
    exchange.arrive = fail  # type: ignore[method-assign]
    with pytest.raises(LinkError):
        one.step()
    assert (one.rounds.unsent, one.rounds.made) == ([2], [2])
    assert one.rounds.pending
    world.close()
