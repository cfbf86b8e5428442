"""A site goes on under its next leader: who is left agrees on it, and no bucket is lost or told twice."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from gradwire.errors import LinkError
from gradwire.level import Level
from gradwire.sites.failover import AddressBook, FailoverStore, SiteFailover
from gradwire.sites.local_reduce import SiteError
from gradwire.tree.reconnect import Reconnector
from gradwire.tree.request import BucketRequest
from gradwire.types import Bucket

LIMIT = 10.0


class StubSite:
    """Keeps what it gets; the test says what becomes of it."""

    def __init__(self, leads: bool = False) -> None:
        self.leads = leads
        self.parcels: list[BucketRequest] = []
        self._came = threading.Semaphore(0)
        self.closed, self.abandoned = threading.Event(), threading.Event()

    def hand_over(self, estate: Any) -> Any:
        return estate

    def submit(self, parcel: BucketRequest) -> None:
        self.parcels.append(parcel)
        self._came.release()

    def came(self, count: int) -> bool:
        return all(self._came.acquire(timeout=LIMIT) for _ in range(count))

    def abandon(self) -> None:
        self.abandoned.set()

    def settle(self, timeout: float) -> None:
        pass

    def close(self, timeout: float = 1.0) -> None:
        self.closed.set()


class Story:
    """Two buckets of one step, and what is said of them."""

    def __init__(self) -> None:
        self.told: list[tuple[int, BaseException | None]] = []
        self.ended = threading.Semaphore(0)

    def parcel(self, index: int) -> BucketRequest:
        def done(error: BaseException | None) -> None:
            self.told.append((index, error))
            self.ended.release()

        bucket = Bucket(index, 0, 4, 4, (), index == 1)
        return BucketRequest(bucket, Level(), torch.zeros(4), torch.zeros(4), done)


def test_the_step_is_done_again_by_the_next_site_and_told_once() -> None:
    first, second, story = StubSite(), StubSite(), Story()
    founded = threading.Event()

    def found(generation: int) -> Any:
        assert generation == 1
        founded.set()
        return second

    site = SiteFailover(first, found, LIMIT)  # type: ignore[arg-type]
    site.hand_over(object())  # type: ignore[arg-type]
    site.submit(story.parcel(0))
    first.parcels[0].done(None)
    site.submit(story.parcel(1))
    first.parcels[1].done(SiteError("gone"))
    assert founded.wait(LIMIT)
    assert second.came(2)
    assert first.abandoned.is_set()
    assert [parcel.bucket.index for parcel in second.parcels] == [0, 1]
    first.parcels[1].done(SiteError("still gone"))
    for parcel in second.parcels:
        parcel.done(None)
    assert story.told == [(0, None), (1, None)]
    site.close()
    assert first.closed.is_set()
    assert second.closed.is_set()


def test_a_job_that_ends_while_a_leader_is_sought_leaves_no_thread() -> None:
    first, story = StubSite(), Story()
    site = SiteFailover(first, lambda generation: pytest.fail("founded"), LIMIT)  # type: ignore[arg-type]
    site.hand_over(object())  # type: ignore[arg-type]
    site.submit(story.parcel(0))
    first.parcels[0].done(SiteError("gone"))  # the step's last bucket never comes
    site.close()
    assert [index for index, error in story.told if isinstance(error, LinkError)] == [0]
    assert "gradwire-succession" not in [thread.name for thread in threading.enumerate()]


def test_a_step_that_is_not_whole_is_waited_for() -> None:
    first, second, story = StubSite(), StubSite(), Story()
    site = SiteFailover(first, lambda generation: second, LIMIT)  # type: ignore[arg-type,return-value]
    site.hand_over(object())  # type: ignore[arg-type]
    site.submit(story.parcel(0))
    first.parcels[0].done(SiteError("gone"))
    assert not second.parcels
    site.submit(story.parcel(1))
    assert second.came(2)
    assert [parcel.bucket.index for parcel in second.parcels] == [0, 1]


def test_without_a_next_site_every_bucket_hears_why() -> None:
    def found(generation: int) -> Any:
        raise LinkError("nobody is left")

    first, story = StubSite(), Story()
    site = SiteFailover(first, found, LIMIT)  # type: ignore[arg-type]
    site.hand_over(object())  # type: ignore[arg-type]
    for index in range(2):
        site.submit(story.parcel(index))
    first.parcels[0].done(SiteError("gone"))
    assert all(story.ended.acquire(timeout=LIMIT) for _ in range(2))
    assert [str(error) for _, error in story.told] == ["nobody is left"] * 2


def test_a_site_with_nothing_to_hand_over_stops() -> None:
    first, story = StubSite(), Story()
    site = SiteFailover(first, lambda generation: pytest.fail("founded"), LIMIT)  # type: ignore[arg-type]
    site.submit(story.parcel(0))
    first.parcels[0].done(SiteError("gone"))
    assert isinstance(story.told[0][1], SiteError)


def test_a_leader_whose_follower_died_goes_on_too() -> None:
    first, second, story = StubSite(leads=True), StubSite(leads=True), Story()
    site = SiteFailover(first, lambda generation: second, LIMIT)  # type: ignore[arg-type,return-value]
    site.hand_over(object())  # type: ignore[arg-type]
    for index in range(2):
        site.submit(story.parcel(index))
    first.parcels[0].done(SiteError("gone"))
    assert second.came(2)
    for parcel in second.parcels:
        parcel.done(None)
    assert story.told == [(0, None), (1, None)]


def test_who_is_dead_is_not_waited_for_and_who_lives_is() -> None:
    store = HashStore()
    register = FailoverStore(store, "b", 1000.0, LIMIT, lambda ranks: ({3}, set()))
    assert register.survivors([3, 5], 5, 1) == [5]
    slow = FailoverStore(store, "c", 0.0, 1000.0, lambda ranks: (set(), {7}))
    lists: list[list[int]] = []
    waiting = threading.Thread(target=lambda: lists.append(slow.survivors([5, 7], 5, 1)), daemon=True)
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive(), "a rank that lives was left out"
    assert slow.survivors([5, 7], 7, 1) == [5, 7]
    waiting.join(LIMIT)
    assert lists == [[5, 7]]


def test_those_who_are_left_come_to_the_same_list() -> None:
    store, lists = HashStore(), dict[int, list[int]]()
    register = FailoverStore(store, "a", 0.5, LIMIT)
    threads = [
        threading.Thread(target=lambda rank=rank: lists.update({rank: register.survivors([3, 5, 7], rank, 1)}))  # type: ignore[misc]
        for rank in (5, 7)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert lists == {5: [5, 7], 7: [5, 7]}
    with pytest.raises(LinkError, match="too late"):
        register.survivors([3, 5, 7], 3, 1)


def test_a_member_that_moved_is_called_where_it_is_now() -> None:
    class Wire:
        addresses = {1: ("10.0.0.1", 5)}  # noqa: RUF012
        called: list[tuple[str, int]] = []  # noqa: RUF012

        def reconnect(self, peer: int) -> None:
            self.called.append(self.addresses[peer])

        def connection_state(self, peer: int) -> str:
            return "waiting"

    store, wire = HashStore(), Wire()
    here, there = AddressBook(store, "job"), AddressBook(store, "job")
    reconnector = Reconnector(wire)
    reconnector.addresses = here.places
    reconnector.reconnect(1, until=100.0)
    there.tell(1, ("nowhere", 6))
    here.look([1])
    assert here.places == {}
    there.tell(1, ("10.0.0.2", 6))
    here.look([1])
    assert reconnector.poll(1.0) == []
    assert reconnector.poll(2.0) == []
    assert wire.called == [("10.0.0.1", 5), ("10.0.0.2", 6)]
    here.watch(lambda: [1])
    here.close()
    assert "gradwire-whereabouts" not in [thread.name for thread in threading.enumerate()]


def test_who_left_is_called_again_only_when_another_process_has_its_place() -> None:
    wire = SimpleNamespace(addresses={1: ("10.0.0.1", 5), 2: ("10.0.0.2", 5)})
    reconnector = Reconnector(wire)
    reconnector.addresses = {1: ("10.0.0.1", 5), 2: ("10.0.0.9", 7)}
    assert reconnector.moved([0, 1, 2]) == [2]
