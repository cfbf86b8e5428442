"""Replicas are compared with whoever was there, and nobody is waited for."""

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


def test_equal_replicas_pass_whoever_is_there_and_in_whatever_order(job: Job) -> None:
    first, second, third = job.start(3)
    for present in ((first, second, third), (third, first), (second,), (second, third)):
        for step in (10, 20):
            for one in present:
                one.compare(step + 100 * len(present), 1234)
    assert not job.warned


def test_who_differs_stops_and_so_does_everybody_else_at_the_next_comparison(job: Job) -> None:
    first, second, third = job.start(3)
    first.compare(10, 1)
    with pytest.raises(IntegrityError, match="after step 10: ranks 0 and 1 restored different"):
        second.compare(10, 2)
    with pytest.raises(IntegrityError, match="ranks 0 and 1"):
        third.compare(10, 1)
    with pytest.raises(IntegrityError, match="ranks 0 and 1"):
        first.compare(20, 1)


def test_digests_of_long_ago_are_not_kept(job: Job) -> None:
    first, second = job.start(2)
    for step in range(100):
        first.compare(step, step)
        second.compare(step, step)
    assert job.store.num_keys() <= KEPT + 1


def test_steps_that_are_made_again_after_a_rollback_are_not_compared_with_those_before(job: Job) -> None:
    first, second = job.start(2)
    for one in (first, second):
        one.compare(10, 1)
    for one in (first, second):
        one.begin_again()
        one.compare(10, 2)
    first.compare(11, 3)
    with pytest.raises(IntegrityError, match="after step 11"):
        second.compare(11, 4)


def test_who_comes_to_the_job_after_a_rollback_is_compared_with_the_steps_after_it(job: Job) -> None:
    (first,) = job.start(1)
    first.compare(10, 1)
    first.begin_again()
    first.compare(10, 2)
    (late,) = job.start(1, joined=True)
    late.begin_again()  # its script loads a checkpoint, which rolls no other rank back
    late.compare(10, 2)
    with pytest.raises(IntegrityError, match="after step 10"):
        late.compare(10, 1)


def test_what_was_found_before_a_rollback_is_settled_by_it(job: Job) -> None:
    first, second = job.start(2)
    first.compare(10, 1)
    with pytest.raises(IntegrityError):
        second.compare(10, 2)
    for one in (first, second):
        one.begin_again()
        one.compare(10, 3)


class Book:
    """A store that holds every request until it is let go, or fails."""

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
def test_a_store_that_is_gone_is_told_once_and_stops_nobody(job: Job, error: Exception) -> None:
    (one,) = job.start(1)
    one._book = Book(one._book, error)  # type: ignore[assignment]
    one.compare(10, 1)
    one.compare(20, 2)
    assert len(job.warned) == 1
    assert "store does not answer" in job.warned[0]


def test_a_comparison_that_is_not_answered_in_time_is_skipped_and_its_verdict_comes_with_a_later_one(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_check, "PATIENCE", 0.05)
    first, second = job.start(2)
    first.compare(10, 1)
    book = Book(second._book)
    second._book = book  # type: ignore[assignment]
    second.compare(10, 2)
    second.compare(20, 2)  # not asked: the one before is under way
    assert len(job.warned) == 1
    assert "did not answer in 0.05 s" in job.warned[0]
    book.go.set()
    assert second._answered.wait(30)
    monkeypatch.setattr(replica_check, "PATIENCE", 30.0)
    with pytest.raises(IntegrityError, match="after step 10: ranks 0 and 1"):
        second.compare(30, 2)


def test_closing_ends_the_thread(job: Job) -> None:
    (one,) = job.start(1)
    one.compare(10, 1)
    one.close()
    assert not one._thread.is_alive()
