"""A rank whose step takes longer than the round: the others go on without it, and nothing of it is lost."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor

from gradwire.config import OuterConfig
from gradwire.errors import LinkError
from gradwire.local_steps.late_rank import LateRankThread
from tests.local_steps.timed_worlds import Rank, TimedWorld, flat, gradient, net

AVERAGE = OuterConfig(kind="average")


def moved(rank: int, first: int, last: int) -> Tensor:
    """What these steps of a rank change."""
    return torch.stack([gradient(rank, step) for step in range(first, last)]).sum(0)


def step_with_passes(one: Rank, *times: float) -> None:
    """A step that takes these seconds together, with a look of the other thread between them."""
    for seconds in times[:-1]:
        one.clock.advance(seconds)
        one.pass_round()
    one.speed = times[-1]
    one.step()


@pytest.mark.parametrize("level", ["off", "int8"])
def test_the_others_go_on_without_a_late_rank_and_its_steps_count_in_a_later_round(level: str) -> None:
    """Rank 1's steps take 25 s: the first is late for two rounds, and is in the third; rank 0 makes ten a round."""
    world = TimedWorld([1.0, 0.0], level, outer=AVERAGE)

    def work(one: Rank) -> None:
        if one.rank == 0:
            while one.rounds.session.step < 5:
                one.step()
        else:
            step_with_passes(one, 11.0, 11.0, 3.0)
            step_with_passes(one, 8.0, 11.0, 6.0)
            step_with_passes(one, 5.0, 4.0)

    world.each(work)
    first, second = world.ranks
    steps = [event.rank_steps for event in second.events]
    assert steps == [event.rank_steps for event in first.events] == [(10, 0), (10, 0), (10, 1), (10, 0), (10, 1)]
    assert [event.weight for event in second.events] == [0.0, 0.0, 1 / 11, 0.0, 1 / 11]
    assert second.events[0].reason == "a step of this rank takes longer than the round"
    assert all(map(torch.equal, first.seen, second.seen))
    assert first.rounds.global_steps == second.rounds.global_steps == 52
    if level == "off":
        expected = flat(net())
        for number, late in enumerate([None, None, gradient(1, 0), None, gradient(1, 1)]):
            own = moved(0, 10 * number, 10 * number + 10)
            expected = expected - (own if late is None else (10 * own + late) / 11)
        assert torch.allclose(second.seen[-1], expected, atol=1e-5)
        assert torch.allclose(flat(second.module), second.seen[-1] - gradient(1, 2), atol=1e-5)
    world.close()


@pytest.mark.parametrize("fragments", [1, 3])
def test_what_a_rank_did_before_a_long_evaluation_is_sent_during_it(fragments: int) -> None:
    world = TimedWorld([1.0, 1.0], seconds=9.0, fragments=fragments, outer=AVERAGE)

    def work(one: Rank) -> None:
        if one.rank == 0:
            while one.rounds.session.step < fragments:
                one.step()
            return
        one.step()
        own = flat(one.module)
        with one.rounds.global_weights():
            for _ in range(fragments):
                one.clock.advance(10.0 / fragments)
                one.pass_round()
            assert torch.equal(flat(one.module), flat(net()))
        assert torch.equal(flat(one.module), own)
        one.speed = 0.0
        one.step()

    world.each(work)
    first, second = world.ranks
    assert all(map(torch.equal, first.seen, second.seen))
    assert {event.rank_steps[1] for event in first.events} == {1}
    assert torch.allclose(flat(second.module), second.seen[-1] - gradient(1, 1), atol=1e-5)
    world.close()


def test_nobody_is_passed_over_in_time_or_while_it_waits_itself() -> None:
    world = TimedWorld([1.0])
    (one,) = world.ranks
    one.rounds.pass_round()
    for _ in range(9):
        one.step()
    one.clock.advance(1.0)
    one.rounds.pass_round()
    assert not one.rounds.agreement.announced, "it has the wait of a tenth of the round, too"
    one.rounds.retire()
    one.clock.advance(5.0)
    one.rounds.pass_round()
    assert not one.rounds.agreement.announced
    world.close()


def test_where_no_rank_contributes_there_is_no_outer_step() -> None:
    world = TimedWorld([1.0, 1.0])
    world.train(1)

    def work(one: Rank) -> None:
        one.clock.advance(11.0)
        one.pass_round()

    world.each(work)
    assert [len(one.events) for one in world.ranks] == [1, 1], "momentum alone would move the weights"
    assert [one.rounds.agreement.announced for one in world.ranks] == [False, False]
    world.close()


class ScriptedRounds:
    """Late at once; `pass_round` fails at the third call."""

    def __init__(self) -> None:
        self.passed, self.failed, self.error = 0, threading.Event(), ""

    def seconds_until_late(self) -> float:
        return -1.0

    def pass_round(self) -> None:
        self.passed += 1
        if self.passed == 3:
            raise LinkError("a peer is gone")

    def fail(self, error: BaseException) -> None:
        self.error = str(error)
        self.failed.set()


def test_the_thread_takes_part_until_an_error_which_the_training_thread_raises() -> None:
    rounds = ScriptedRounds()
    thread = LateRankThread(rounds)
    thread.start()
    assert rounds.failed.wait(60)
    assert (rounds.passed, rounds.error) == (3, "a peer is gone")
    thread.close()
    world = TimedWorld([1.0])
    (one,) = world.ranks
    one.rounds.fail(LinkError("a peer is gone"))
    with pytest.raises(LinkError, match="a peer is gone"):
        one.step()
    world.close()


def test_a_rank_that_gave_up_waiting_and_evaluates_is_represented_too() -> None:
    """Rank 0 announces its ten steps, does not wait any longer and evaluates; rank 1 comes to the end of the round."""
    world = TimedWorld([1.0, 2.0], outer=AVERAGE)

    def work(one: Rank) -> None:
        if one.rank:
            while one.rounds.session.step < 1:
                one.step()
            return
        agreement = one.rounds.agreement
        waits, agreement.all_here = agreement.all_here, lambda seconds: False  # type: ignore[method-assign]
        for _ in range(10):
            one.step()
        agreement.all_here = waits  # type: ignore[method-assign]
        assert one.events == [], "it made its part and went on"
        one.clock.advance(30.0)
        one.pass_round()

    world.each(work)
    first, second = world.ranks
    assert [event.rank_steps for event in first.events] == [event.rank_steps for event in second.events] == [(10, 5)]
    assert all(map(torch.equal, first.seen, second.seen))
    expected = flat(net()) - (10 * moved(0, 0, 10) + 5 * moved(1, 0, 5)) / 15
    assert torch.allclose(first.seen[-1], expected, atol=1e-5)
    world.close()


def test_an_evaluation_right_after_a_synchronisation_does_not_hold_up_the_others() -> None:
    """Both ranks synchronise; rank 1 evaluates for longer than a round before its next step, rank 0 trains on."""
    world = TimedWorld([1.0, 0.0], outer=AVERAGE)

    def work(one: Rank) -> None:
        one.step()
        one.finish()
        if one.rank == 0:
            while one.rounds.session.step < 2:
                one.step()
            return
        one.clock.advance(11.5)
        own = flat(one.module)
        one.pass_round()
        assert torch.equal(flat(one.module), own), "the weights that are evaluated stay"
        one.step()

    world.each(work)
    first, second = world.ranks
    assert [event.rank_steps for event in second.events] == [(1, 1), (10, 0)]
    assert all(map(torch.equal, first.seen, second.seen))
    assert torch.allclose(flat(second.module), second.seen[-1] - gradient(1, 1), atol=1e-5)
    world.close()


def test_a_rank_whose_handle_is_closed_meanwhile_does_not_wait_for_ever() -> None:
    """All ranks have announced; `close` comes between that and the agreement, for which nothing would answer."""
    world = TimedWorld([1.0, 1.0])
    waited = list[bool]()

    def work(one: Rank) -> None:
        one.clock.advance(11.5)
        agreement = one.rounds.agreement
        waits = agreement.all_here

        def all_here(seconds: float | None) -> bool:
            found = waits(seconds)
            agreement.close()
            return found

        agreement.all_here = all_here  # type: ignore[method-assign]
        with pytest.raises(LinkError, match="was closed"):
            one.rounds.pass_round()
        with one.rounds.paused():
            waited.append(True)

    threads = [threading.Thread(target=work, args=(one,), daemon=True) for one in world.ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert waited == [True, True], "a checkpoint can be saved after close"
    world.close()


def test_an_error_while_the_handle_closes_is_not_raised_later() -> None:
    rounds, closing = ScriptedRounds(), threading.Event()
    thread = LateRankThread(rounds)

    def pass_round() -> None:
        closing.wait(60)
        raise LinkError("a peer is gone")

    rounds.pass_round = pass_round  # type: ignore[method-assign]
    thread.start()
    thread._closing.set()
    closing.set()
    thread.close()
    assert not thread._thread.is_alive()
    assert rounds.error == ""
