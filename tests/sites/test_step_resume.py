"""A site lost a follower in the middle of a step: who sums what again, who gets which result, who gets the state."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import HashStore, PrefixStore, ProcessGroupGloo

from gradwire.level import Level
from gradwire.sites.local_reduce import LocalReducer, SharedReplicaState
from gradwire.sites.step_resume import PendingResult, StepPosition, StepProgress, StepResume
from gradwire.tree.request import BucketRequest
from gradwire.types import Bucket

BUCKETS, LIMIT = 3, 30.0


@pytest.fixture(autouse=True)
def on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


def test_the_leader_s_sums_stay_and_followers_say_from_where_they_miss_results() -> None:
    at = [StepPosition(7, 1, 2), StepPosition(7, 1), StepPosition(6, 2), StepPosition(8, 0)]
    leader, same, behind, ahead = (StepResume.of(place, at, StepProgress()) for place in range(4))
    assert (leader.summed, leader.weight, leader.others, leader.behind) == (2, 2, {1: 1, 2: 0}, {2})
    assert (same.first, same.silent, same.others) == (1, False, {})
    assert (behind.first, behind.silent) == (0, True)
    assert (ahead.first, ahead.summed) == (None, 0)


def test_an_attempt_is_undone_and_what_was_not_attempted_is_left_alone() -> None:
    attempts, gradients = StepProgress(), [torch.full((2,), float(place)) for place in range(2)]
    for place, gradient in enumerate(gradients):
        attempts.save(place, gradient)
    attempts.clear()  # another step, whose first bucket alone was attempted
    attempts.save(0, torch.tensor([5.0, 5.0]))
    for place, gradient in enumerate(gradients):
        gradient.fill_(9.0)
        attempts.restore(place, gradient)
    assert [gradient.tolist() for gradient in gradients] == [[5.0, 5.0], [9.0, 9.0]]


class Replica:
    """An estate of one number, and the step it was taken at."""

    def __init__(self, value: float) -> None:
        self.value, self.step = torch.tensor([value]), -1

    def give(self, step: int) -> tuple[bytes, Sequence[Tensor]]:
        return str(step).encode(), [self.value]

    def take(self, header: bytes, body: Tensor) -> None:
        self.step = int(header)
        self.value = body.clone().view(torch.float32)


def together(run: Callable[[int], Any], ranks: int) -> list[Any]:
    results: list[Any] = [None] * ranks

    def one(rank: int) -> None:
        results[rank] = run(rank)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()
    return results


def test_the_rest_of_a_step_is_summed_among_those_left_and_everybody_ends_with_the_same() -> None:
    """A leader and two followers are left. The leader had bucket 0 back already, with what the dead rank gave (100);
    one follower is in the same step, one a step behind."""
    store = HashStore()
    at = [StepPosition(7, 0, 1), StepPosition(7, 0), StepPosition(6, 1)]
    across: list[tuple[float, int]] = []

    def submit(parcel: BucketRequest) -> None:
        across.append((float(parcel.gradient[0]), parcel.weight))
        parcel.gradient.div_(parcel.weight)
        parcel.done(None)

    def run(rank: int) -> tuple[list[list[float]], Replica]:
        groups = [
            ProcessGroupGloo(PrefixStore(name, store), rank, len(at), timedelta(seconds=LIMIT))
            for name in ("sum", "share")
        ]
        attempts, replica, ended = StepProgress(), Replica(float(rank)), threading.Semaphore(0)
        gradients = [torch.full((4,), float(10 * place + rank + 1)) for place in range(BUCKETS)]
        for place in range(2):  # bucket 1 was attempted, and spoilt
            attempts.save(place, gradients[place])
        gradients[1].fill_(-1.0)
        if rank == 0:
            gradients[0].fill_(100.0)
            crossed = PendingResult()
            crossed.put(None)
            attempts.crossed, attempts.summed = [crossed], 1
        errors: list[BaseException | None] = []

        def done(error: BaseException | None) -> None:
            errors.append(error)
            ended.release()

        resume = StepResume.of(rank, at, attempts)
        site = LocalReducer(
            groups, submit if rank == 0 else None, keep=True, resume=resume, inheritance=SharedReplicaState(replica)
        )
        for place, gradient in enumerate(gradients):
            bucket = Bucket(place, at[rank].step, 4, 4, (), place == BUCKETS - 1)
            site.submit(BucketRequest(bucket, Level(), gradient, torch.zeros(4), done))
        assert all(ended.acquire(timeout=LIMIT) for _ in range(BUCKETS))
        assert errors == [None] * BUCKETS, errors
        site.close()
        return [gradient.tolist() for gradient in gradients], replica

    results = together(run, len(at))
    # Ranks 0 and 1 contribute to buckets 1 and 2; the one behind does not.
    assert across == [(11.0 + 12.0, 2), (21.0 + 22.0, 2)]
    for gradients, _ in results:
        assert gradients == [[100.0] * 4, [11.5] * 4, [21.5] * 4]
    replicas = [replica for _, replica in results]
    assert [replica.step for replica in replicas] == [-1, -1, 7]
    assert float(replicas[2].value) == 0.0, "the one behind has the leader's state"
    assert float(replicas[1].value) == 1.0
