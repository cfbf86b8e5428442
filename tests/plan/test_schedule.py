"""The list schedule of a plan: chunks share resources in turns, and start when what they need has arrived."""

from __future__ import annotations

import pytest

from gradwire.plan.model.auxiliary import takes_side
from gradwire.plan.model.schedule import Move, makespan

SLOW, FAST = 0, 1
CAPACITY = (100.0, 1000.0)


def move(*resources: int, nbytes: float = 100, delay: float = 0, pieces: int = 1, needs: tuple[int, ...] = ()) -> Move:
    return Move(resources, nbytes, delay, pieces, needs)


def test_chunks_of_one_move_follow_each_other_and_the_last_arrives_after_its_delay() -> None:
    assert makespan([move(SLOW, delay=0.5, pieces=3)], CAPACITY) == pytest.approx(3.5)


@pytest.mark.parametrize("slices", [1, 3, 8])
def test_moves_over_one_resource_share_it_and_others_run_beside_them(slices: int) -> None:
    assert makespan([move(SLOW), move(SLOW)], CAPACITY, slices) == pytest.approx(2)
    assert makespan([move(SLOW), move(FAST)], CAPACITY, slices) == pytest.approx(1)
    assert makespan([move(SLOW, FAST), move(SLOW)], CAPACITY, slices) == pytest.approx(2)


def test_a_move_takes_as_long_as_its_slowest_resource() -> None:
    assert makespan([move(FAST, SLOW)], CAPACITY) == pytest.approx(1)


def test_a_fast_uplink_feeds_several_slow_links_at_once() -> None:
    slow_links = [100.0] * 4
    moves = [Move((0, 1 + link), 100, 0, 1, ()) for link in range(4)]
    assert makespan(moves, [1000.0, *slow_links]) < 1.5
    assert makespan(moves, [100.0, *slow_links]) == pytest.approx(4)


def test_a_chunk_starts_when_the_same_chunk_of_every_need_has_arrived() -> None:
    up = [move(0, pieces=4), move(1, delay=2, pieces=4)]
    down = move(2, pieces=4, needs=(0, 1))
    # The second move's chunks arrive at 3, 4, 5 and 6; the third sends each in one second more.
    assert makespan([*up, down], (100.0, 100.0, 100.0)) == pytest.approx(7)


def test_chunks_pipeline_through_a_chain_of_hops() -> None:
    hops = 5

    def chain(pieces: int) -> float:
        moves = [move(hop, nbytes=100 / pieces, pieces=pieces, needs=(hop - 1,) if hop else ()) for hop in range(hops)]
        return makespan(moves, [100.0] * hops)

    assert chain(1) == pytest.approx(hops)
    assert chain(10) == pytest.approx(1 + (hops - 1) / 10)


def test_no_moves_take_no_time() -> None:
    assert makespan([], []) == 0


def test_a_side_route_is_taken_only_from_a_long_queue_to_an_empty_one() -> None:
    assert takes_side(3, 0)
    assert not takes_side(2, 0)
    assert not takes_side(3, 1)
