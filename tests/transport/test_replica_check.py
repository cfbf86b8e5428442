"""Replicas are compared with those that are present, and nobody waits for an absent one."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from torch.distributed import HashStore

from gradwire.errors import IntegrityError
from gradwire.transport.bootstrap import replica_check
from gradwire.transport.bootstrap.replica_check import KEPT, ReplicaCheck


class Job:
    """Ranks of one process around one store."""

    def __init__(self) -> None:
        self.store, self.warned, self.ranks = HashStore(), list[str](), list[ReplicaCheck]()

    def start(self, count: int, *, joined: bool = False) -> list[ReplicaCheck]:
        for _ in range(count):
            rank = len(self.ranks)
            self.ranks.append(ReplicaCheck(self.store, "model", rank, self.warned.append, joined=joined))
        return self.ranks[-count:]


@pytest.fixture
def job() -> Iterator[Job]:
    job = Job()
    yield job
    for one in job.ranks:
        one.close()


def test_equal_replicas_pass_whoever_is_present_and_in_any_order(job: Job) -> None:
    first, second, third = job.start(3)
    for present in ((first, second, third), (third, first), (second,), (second, third)):
        for step in (10, 20):
            for one in present:
                one.compare(step + 100 * len(present), 1234)
    assert not job.warned


def test_a_rank_that_differs_stops_and_so_do_all_others_at_the_next_comparison(job: Job) -> None:
    first, second, third = job.start(3)
    first.compare(10, 1)
    with pytest.raises(IntegrityError, match="after step 10: ranks 0 and 1 restored different"):
        second.compare(10, 2)
    with pytest.raises(IntegrityError, match="ranks 0 and 1"):
        third.compare(10, 1)
    with pytest.raises(IntegrityError, match="ranks 0 and 1"):
        first.compare(20, 1)


def test_old_digests_are_deleted(job: Job) -> None:
    first, second = job.start(2)
    for step in range(100):
        first.compare(step, step)
        second.compare(step, step)
    assert job.store.num_keys() <= KEPT + 1


def test_steps_repeated_after_a_rollback_are_not_compared_with_those_before_it(job: Job) -> None:
    first, second = job.start(2)
    for one in (first, second):
        one.compare(10, 1)
    for one in (first, second):
        one.roll_back()
        one.compare(10, 2)
    first.compare(11, 3)
    with pytest.raises(IntegrityError, match="after step 11"):
        second.compare(11, 4)


def test_a_rank_that_rejoins_after_a_rollback_is_compared_with_the_steps_after_it(job: Job) -> None:
    (first,) = job.start(1)
    first.compare(10, 1)
    first.roll_back()
    first.compare(10, 2)
    (late,) = job.start(1, joined=True)
    late.roll_back()  # its script loads a checkpoint, which rolls no other rank back
    late.compare(10, 2)
    with pytest.raises(IntegrityError, match="after step 10"):
        late.compare(10, 1)


def test_a_rollback_clears_a_difference_found_before_it(job: Job) -> None:
    first, second = job.start(2)
    first.compare(10, 1)
    with pytest.raises(IntegrityError):
        second.compare(10, 2)
    for one in (first, second):
        one.roll_back()
        one.compare(10, 3)


class SlowStore:
    """A store that holds every request until `go` is set, or fails."""

    def __init__(self, inner: object, error: Exception | None = None) -> None:
        self.inner, self.error, self.go = inner, error, threading.Event()

    def check(self, keys: list[str]) -> bool:
        if self.error:
            raise self.error
        self.go.wait(30)
        return self.inner.check(keys)  # type: ignore[attr-defined, no-any-return]

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


@pytest.mark.parametrize("error", [RuntimeError("connection closed"), ValueError("no number")])
def test_a_lost_store_is_reported_once_and_stops_nobody(job: Job, error: Exception) -> None:
    (one,) = job.start(1)
    one._keys = SlowStore(one._keys, error)  # type: ignore[assignment]
    one.compare(10, 1)
    one.compare(20, 2)
    assert len(job.warned) == 1
    assert "store does not answer" in job.warned[0]


def test_a_comparison_without_an_answer_in_time_is_skipped_and_its_result_raised_by_a_later_one(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_check, "ANSWER_TIMEOUT", 0.05)
    first, second = job.start(2)
    first.compare(10, 1)
    store = SlowStore(second._keys)
    second._keys = store  # type: ignore[assignment]
    second.compare(10, 2)
    second.compare(20, 2)  # skipped: the one before has no answer yet
    assert len(job.warned) == 1
    assert "did not answer within 0.05 s" in job.warned[0]
    store.go.set()
    assert second._answered.wait(30)
    monkeypatch.setattr(replica_check, "ANSWER_TIMEOUT", 30.0)
    with pytest.raises(IntegrityError, match="after step 10: ranks 0 and 1"):
        second.compare(30, 2)


def test_closing_ends_the_thread(job: Job) -> None:
    (one,) = job.start(1)
    one.compare(10, 1)
    one.close()
    assert not one._thread.is_alive()
