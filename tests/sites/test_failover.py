"""A site continues after the loss of a rank: no bucket is lost, and each result is reported once."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gradwire.errors import LinkError
from gradwire.level import Level
from gradwire.sites.failover import SiteFailover
from gradwire.sites.site_groups import SiteError
from gradwire.sites.worker_thread import complete
from gradwire.tree.request import BucketRequest
from gradwire.types import Bucket

LIMIT = 10.0


class StubSite:
    """Keeps the requests it gets; the test completes them."""

    def __init__(self, leads: bool = False) -> None:
        self.leads = leads
        self.progress = SimpleNamespace(summed=0)
        self.requests: list[BucketRequest] = []
        self.results: list[Future[None]] = []
        self._submitted = threading.Semaphore(0)
        self.closed, self.abandoned = threading.Event(), threading.Event()

    def set_replica_state(self, state: Any) -> Any:
        return state

    def submit(self, request: BucketRequest) -> Future[None]:
        self.requests.append(request)
        self.results.append(Future())
        self._submitted.release()
        return self.results[-1]

    def finish(self, number: int, error: BaseException | None = None) -> None:
        complete(self.results[number], error)

    def received(self, count: int) -> bool:
        return all(self._submitted.acquire(timeout=LIMIT) for _ in range(count))

    @property
    def indices(self) -> list[int]:
        return [request.bucket.index for request in self.requests]

    def abandon(self) -> None:
        self.abandoned.set()

    def wait_unused(self, timeout: float) -> None:
        pass

    def close(self, timeout: float = 1.0) -> None:
        self.closed.set()


class Step:
    """Two buckets of one step, and what was reported of them."""

    def __init__(self, site: SiteFailover) -> None:
        self._site = site
        self.reported: list[tuple[int, BaseException | None]] = []
        self.ended = threading.Semaphore(0)

    def submit(self, index: int) -> None:
        def done(result: Future[None]) -> None:
            self.reported.append((index, result.exception()))
            self.ended.release()

        bucket = Bucket(index, 0, 4, 4, (), index == 1)
        request = BucketRequest(bucket, Level(), torch.zeros(4), torch.zeros(4), lambda error: None)
        self._site.submit(request).add_done_callback(done)


def never(*_: object) -> Any:
    pytest.fail("the site was rebuilt")


def opened(first: StubSite, rebuild: Any, *, with_state: bool = True) -> tuple[SiteFailover, Step]:
    site = SiteFailover(first, rebuild, LIMIT)  # type: ignore[arg-type]
    if with_state:
        site.set_replica_state(object())  # type: ignore[arg-type]
    return site, Step(site)


def test_the_rebuilt_site_repeats_the_step_and_each_result_is_reported_once() -> None:
    first, second = StubSite(), StubSite()
    rebuilt = threading.Event()

    def rebuild(generation: int, *_: object) -> Any:
        assert generation == 1
        rebuilt.set()
        return second

    site, step = opened(first, rebuild)
    step.submit(0)
    first.finish(0)
    step.submit(1)
    first.finish(1, SiteError("lost"))
    assert rebuilt.wait(LIMIT)
    assert second.received(2)
    assert first.abandoned.is_set()
    assert second.indices == [0, 1]
    for number in range(2):
        second.finish(number)
    assert step.reported == [(0, None), (1, None)]
    site.close()
    assert first.closed.is_set()
    assert second.closed.is_set()


def test_errors_of_an_abandoned_site_are_not_reported() -> None:
    first, second = StubSite(), StubSite()
    _, step = opened(first, lambda *_: second)
    for index in range(2):
        step.submit(index)
    first.finish(0, SiteError("lost"))
    assert second.received(2)
    first.finish(1, SiteError("still lost"))
    assert step.reported == []
    for number in range(2):
        second.finish(number)
    assert step.reported == [(0, None), (1, None)]


def test_a_job_that_closes_while_its_site_is_rebuilt_leaves_no_thread() -> None:
    first = StubSite()
    site, step = opened(first, never)
    step.submit(0)
    first.finish(0, SiteError("lost"))  # the step's last bucket is never submitted
    site.close()
    assert [index for index, error in step.reported if isinstance(error, LinkError)] == [0]
    assert "gradwire-failover" not in [thread.name for thread in threading.enumerate()]


def test_a_rebuild_waits_for_the_last_bucket_of_the_step() -> None:
    first, second = StubSite(), StubSite()
    _, step = opened(first, lambda *_: second)
    step.submit(0)
    first.finish(0, SiteError("lost"))
    assert not second.requests
    step.submit(1)
    assert second.received(2)
    assert second.indices == [0, 1]


def test_when_the_rebuild_fails_this_step_and_every_later_bucket_get_its_error() -> None:
    def rebuild(*_: object) -> Any:
        raise LinkError("no rank is left")

    first = StubSite()
    site, step = opened(first, rebuild)
    for index in range(2):
        step.submit(index)
    first.finish(0, SiteError("lost"))
    assert all(step.ended.acquire(timeout=LIMIT) for _ in range(2))
    assert [str(error) for _, error in step.reported] == ["no rank is left"] * 2
    later = Step(site)
    later.submit(0)
    assert [str(error) for _, error in later.reported] == ["no rank is left"]


def test_a_site_without_a_replica_state_is_not_rebuilt() -> None:
    first = StubSite()
    _, step = opened(first, never, with_state=False)
    step.submit(0)
    first.finish(0, SiteError("lost"))
    assert isinstance(step.reported[0][1], SiteError)


def test_a_leader_whose_follower_died_continues_too() -> None:
    first, second = StubSite(leads=True), StubSite(leads=True)
    _, step = opened(first, lambda *_: second)
    for index in range(2):
        step.submit(index)
    first.finish(0, SiteError("lost"))
    assert second.received(2)
    for number in range(2):
        second.finish(number)
    assert step.reported == [(0, None), (1, None)]
