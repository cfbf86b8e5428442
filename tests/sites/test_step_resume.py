"""A site lost a follower in the middle of a step: which sums are repeated, who receives which results and the state."""

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
from gradwire.sites.local_reduce import LocalReducer
from gradwire.sites.result_broadcast import SharedReplicaState
from gradwire.sites.step_resume import StepPosition, StepProgress, StepResume
from gradwire.sites.worker_thread import finished
from gradwire.tree.request import BucketRequest
from gradwire.types import Bucket

BUCKETS, LIMIT = 3, 30.0


@pytest.fixture(autouse=True)
def on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


def test_the_leader_keeps_its_sums_and_followers_report_which_results_they_miss() -> None:
    at = [StepPosition(7, 1, 2), StepPosition(7, 1), StepPosition(6, 2), StepPosition(8, 0)]
    leader, same, behind, ahead = (StepResume.of(group_rank, at, StepProgress()) for group_rank in range(4))
    assert (leader.summed, leader.weight, leader.missing, leader.behind) == (2, 2, {1: 1, 2: 0}, {2})
    assert (same.first_missing, same.contributes, same.missing) == (1, True, {})
    assert (behind.first_missing, behind.contributes) == (0, False)
    assert (ahead.first_missing, ahead.summed) == (None, 0)


def test_an_attempt_is_undone_and_a_bucket_without_an_attempt_is_unchanged() -> None:
    progress, gradients = StepProgress(), [torch.full((2,), float(number)) for number in range(2)]
    for number, gradient in enumerate(gradients):
        progress.save(number, gradient)
    progress.clear()  # another step, whose first bucket alone was attempted
    progress.save(0, torch.tensor([5.0, 5.0]))
    for number, gradient in enumerate(gradients):
        gradient.fill_(9.0)
        progress.restore(number, gradient)
    assert [gradient.tolist() for gradient in gradients] == [[5.0, 5.0], [9.0, 9.0]]


class Replica:
    """A replica state of one number, and the step at which it was received."""

    def __init__(self, value: float) -> None:
        self.value, self.step = torch.tensor([value]), -1

    def save(self, step: int) -> tuple[bytes, Sequence[Tensor]]:
        return str(step).encode(), [self.value]

    def load(self, header: bytes, body: Tensor) -> None:
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


def test_the_rest_of_a_step_is_summed_by_the_ranks_that_are_left_and_all_end_with_the_same_result() -> None:
    """A leader and two followers are left. The leader has the result of bucket 0 already, with the contribution of the
    dead rank (100); one follower is in the same step, one a step behind."""
    store = HashStore()
    at = [StepPosition(7, 0, 1), StepPosition(7, 0), StepPosition(6, 1)]
    submitted: list[tuple[float, int]] = []

    def submit_to_trees(request: BucketRequest) -> None:
        submitted.append((float(request.gradient[0]), request.weight))
        request.gradient.div_(request.weight)
        request.done(None)

    def run(rank: int) -> tuple[list[list[float]], Replica]:
        groups = [
            ProcessGroupGloo(PrefixStore(name, store), rank, len(at), timedelta(seconds=LIMIT))
            for name in ("sum", "share")
        ]
        progress, replica = StepProgress(), Replica(float(rank))
        gradients = [torch.full((4,), float(10 * number + rank + 1)) for number in range(BUCKETS)]
        for number in range(2):  # bucket 1 was attempted, which changed its gradient
            progress.save(number, gradients[number])
        gradients[1].fill_(-1.0)
        if rank == 0:
            gradients[0].fill_(100.0)
            progress.add_sum(0, finished())
        resume = StepResume.of(rank, at, progress)
        site = LocalReducer(
            groups,
            submit_to_trees if rank == 0 else None,
            resumable=True,
            resume=resume,
            state=SharedReplicaState(replica),
        )
        results = []
        for number, gradient in enumerate(gradients):
            bucket = Bucket(number, at[rank].step, 4, 4, (), number == BUCKETS - 1)
            results.append(site.submit(BucketRequest(bucket, Level(), gradient, torch.zeros(4), lambda error: None)))
        assert [result.exception(LIMIT) for result in results] == [None] * BUCKETS
        site.close()
        return [gradient.tolist() for gradient in gradients], replica

    results = together(run, len(at))
    # Ranks 0 and 1 contribute to buckets 1 and 2; the rank behind does not.
    assert submitted == [(11.0 + 12.0, 2), (21.0 + 22.0, 2)]
    for gradients, _ in results:
        assert gradients == [[100.0] * 4, [11.5] * 4, [21.5] * 4]
    replicas = [replica for _, replica in results]
    assert [replica.step for replica in replicas] == [-1, -1, 7]
    assert float(replicas[2].value) == 0.0, "the rank behind has the leader's state"
    assert float(replicas[1].value) == 1.0
