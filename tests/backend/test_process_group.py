"""`init_process_group("gradwire")` on real processes and real sockets: correct results, and errors instead of hangs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gradwire.backend.buffers import INLINE
from gradwire.backend.reduce import CHUNK, DIRECT
from tests.backend import jobs
from tests.train.ranks import Ranks
from tests.trials import Trial, decide


@pytest.fixture(scope="module")
def bare(ranks: Ranks) -> Ranks:
    """Processes whose jobs make their own groups."""
    return ranks.on("")


@pytest.fixture(scope="module")
def ranks(ranks: Ranks) -> Ranks:
    return ranks.on("gradwire")


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_sum_is_right(ranks: Ranks, world_size: int) -> None:
    ranks.run(world_size, jobs.reduces)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_move_is_right(ranks: Ranks, world_size: int) -> None:
    ranks.run(world_size, jobs.moves)


@pytest.mark.parametrize("wire", ["tcp", "ltp", "shm"])
def test_every_sum_is_right_over_every_wire(bare: Ranks, wire: str) -> None:
    """Between ranks of one host sums go through shared memory, unless a wire is named that reaches other hosts too."""
    bare.run(3, jobs.over, wire, bare.port, jobs.reduces)


@pytest.mark.parametrize(
    "job",
    [
        jobs.uneven_all_to_all,
        jobs.strided_tensors,
        jobs.sparse_sum,
        jobs.sparse_sum_with_nothing,
        jobs.many_at_once,
        jobs.two_groups_in_two_threads,
        jobs.coalesced,
        jobs.in_place,
    ],
)
def test_what_else_gloo_can_do(ranks: Ranks, job: object) -> None:
    ranks.run(3, job, timeout=30)  # type: ignore[arg-type]


@pytest.mark.parametrize("hidden", [False, True])
def test_a_callback_may_wait_for_another_sum(ranks: Ranks, hidden: bool) -> None:
    assert ranks.run(2, jobs.sums_inside_callbacks, hidden, timeout=30) == [[0, 1, 2]] * 2


def test_a_callback_of_a_receive_may_wait_for_its_caller(ranks: Ranks) -> None:
    assert all(ranks.run(2, jobs.receive_callback))


def test_torchs_power_sgd_trains(ranks: Ranks) -> None:
    """The same weights on all ranks; two ranks with the same data get the weights of one alone."""
    first, second = ranks.run(2, jobs.power_sgd, False, timeout=30)
    assert torch.equal(first, second)
    both, alone = ranks.run(2, jobs.power_sgd, True, timeout=30)[0], ranks.run(1, jobs.power_sgd, True, timeout=30)[0]
    torch.testing.assert_close(both, alone)
    assert not torch.equal(first, both)


def test_a_future_raises_the_error_of_its_operation(ranks: Ranks) -> None:
    for errors in ranks.run(3, jobs.late_errors)[:2]:
        assert all("rank 2" in error for error in errors), errors


@pytest.mark.parametrize("count", [100, DIRECT // 4 + 1, 3 * CHUNK // 4 + 5])
def test_all_ranks_hold_the_same_bits(ranks: Ranks, count: int) -> None:
    first, *others = ranks.run(3, jobs.same_bits, count)
    assert all(torch.equal(first, other) for other in others)


def test_small_and_large_tensors_are_added_in_the_same_order(ranks: Ranks) -> None:
    small, large = ranks.run(3, jobs.same_bits, 100)[0], ranks.run(3, jobs.same_bits, CHUNK)[0]
    rows = [torch.randn(CHUNK, generator=torch.Generator().manual_seed(rank)) * 10.0**rank for rank in range(3)]
    assert torch.equal(large, (rows[0] + rows[1]) + rows[2])
    rows = [torch.randn(100, generator=torch.Generator().manual_seed(rank)) * 10.0**rank for rank in range(3)]
    assert torch.equal(small, (rows[0] + rows[1]) + rows[2])


def test_messages_are_matched_by_tag_and_received_from_any_source(ranks: Ranks) -> None:
    assert ranks.run(4, jobs.tagged_messages)[0] == [1, 2, 3]


@pytest.mark.parametrize("count", [3, INLINE])
def test_a_message_of_another_type_is_an_error(ranks: Ranks, count: int) -> None:
    _, error = ranks.run(2, jobs.another_dtype, count)
    assert f"{count} elements of torch.int32" in error
    assert f"{count} elements of torch.float32" in error


def test_a_rank_far_ahead_does_not_disagree(ranks: Ranks) -> None:
    ranks.run(2, jobs.a_rank_far_ahead, 100)


@pytest.mark.parametrize("kind", ["operation", "one call more", "dtype", "count", "large count", "reduce op"])
def test_a_disagreement_is_named_on_every_rank(ranks: Ranks, kind: str) -> None:
    errors = ranks.run(3, jobs.disagreement, kind)
    assert all("rank 1" in error for error in errors), errors
    assert all(("called" in error or "shapes differ" in error or "size" in error) for error in errors), errors


@pytest.mark.parametrize("kind", ["operation", "count", "large count"])
def test_a_disagreement_over_a_wire_is_named_on_every_rank(bare: Ranks, kind: str) -> None:
    errors = bare.run(3, jobs.over, "tcp", bare.port, jobs.disagreement, kind)
    assert all("rank 1" in error for error in errors), errors


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_absent_rank_is_named_after_the_timeout(ranks: Ranks, asynchronous: bool) -> None:
    def trial(_: Trial) -> None:
        *waited, (late, _seconds) = ranks.run(3, jobs.absent_rank, asynchronous)
        for error, seconds in waited:
            assert "rank 2" in error
            assert 0.8 < seconds < 3.4, "after its own timeout, before the late rank called"
        assert late

    decide(trial)


def test_a_lost_process_is_an_error_on_all_others() -> None:
    pool = Ranks("gradwire")
    try:
        with pytest.raises(AssertionError, match="exit code 17") as caught:
            pool.run(3, jobs.lost_rank)
        assert "no answer" not in str(caught.value)
    finally:
        pool.close()


def test_a_rank_that_leaves_early_is_an_error_on_the_others(ranks: Ranks) -> None:
    for error, seconds in ranks.run(3, jobs.gone_from_sums)[:2]:
        assert "rank 2" in error
        assert "closed the connection" in error
        assert seconds < 20, "the group's timeout is 30 s"


def test_an_abort_ends_operations_of_the_others(ranks: Ranks) -> None:
    assert all("aborted" in error for error in ranks.run(3, jobs.aborted))


def test_a_monitored_barrier_names_the_missing_rank(ranks: Ranks) -> None:
    *came, (first, _) = ranks.run(3, jobs.monitored_barriers)
    assert first == ""
    for passed, missed in came:
        assert passed == ""
        assert "2 failed to pass" in missed


def test_nothing_is_left_when_groups_are_destroyed(bare: Ranks, tmp_path: Path) -> None:
    """A leak grows from cycle to cycle; late threads of torch do not."""
    for left in bare.run(2, jobs.cycles, str(tmp_path), 12):
        for last, *first in zip(left[-1], *left[:4], strict=True):
            assert last <= max(first), left


def test_nothing_is_left_where_torch_destroys_a_group_without_shutdown(bare: Ranks) -> None:
    for left in bare.run(2, jobs.dropped, bare.port):
        # Less may be left: what an earlier test left behind may end meanwhile.
        assert all(last <= first for last, first in zip(left[-1], left[1], strict=True)), left


def test_a_destroyed_group_holds_no_store(bare: Ranks, tmp_path: Path) -> None:
    """Torch aborts a process that drops a store over a file after the file is gone."""
    assert bare.run(1, jobs.kept_group, str(tmp_path)) == [True]


def test_the_address_is_logged_once(bare: Ranks) -> None:
    for rank, lines in enumerate(bare.run(2, jobs.logged, bare.port)):
        assert len(lines) == 1
        assert f"rank {rank} of 2" in lines[0]
        assert "127.0.0.1" in lines[0]
        assert f"shared memory to rank {1 - rank}" in lines[0]


def test_ddp_gives_the_same_weights_on_every_rank(ranks: Ranks) -> None:
    first, *others = ranks.run(3, jobs.train, None)
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("level", ["off", "int8", "topk:0.1+int8", "auto"])
def test_gradient_synchronisation_goes_through_a_session_on_the_same_group(ranks: Ranks, level: str) -> None:
    plain = ranks.run(3, jobs.train, None)[0]
    first, *others = ranks.run(3, jobs.train, level)
    assert all(torch.equal(first, other) for other in others)
    if level == "off":
        assert torch.equal(first, plain)
