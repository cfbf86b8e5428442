"""A site's reduction: local sum, trees, broadcast; a failed collective fails its bucket and all later ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gradwire.errors import LinkError
from gradwire.level import Level
from gradwire.sites.local_reduce import LocalReducer
from gradwire.sites.site_groups import SiteError
from gradwire.tree.request import BucketRequest
from gradwire.types import Bucket

LIMIT = 10.0


class StubGroup:
    """Two ranks with the same gradient. A collective fails if its number is `fails`."""

    def __init__(self, fails: int = -1) -> None:
        self.calls: list[str] = []
        self._fails = fails

    def size(self) -> int:
        return 2

    def allreduce(self, tensors: list[torch.Tensor]) -> Any:
        tensors[0].mul_(2.0)
        return self._work("allreduce")

    def broadcast(self, tensor: torch.Tensor, root: int) -> Any:
        return self._work("broadcast")

    def _work(self, call: str) -> Any:
        number = len(self.calls)
        self.calls.append(call)
        return SimpleNamespace(wait=lambda: self._wait(number))

    def _wait(self, number: int) -> None:
        if number == self._fails:
            raise RuntimeError("connection closed")


def request_of(index: int, last: int = 2) -> BucketRequest:
    bucket = Bucket(index, 0, 4, 4, (), index == last)
    return BucketRequest(bucket, Level(), torch.full((4,), index + 1.0), torch.ones(4), lambda error: None)


def to_trees(request: BucketRequest) -> None:
    """The mean of this site and of another one, whose gradient is zero."""
    request.gradient.div_(2 * request.weight)
    request.done(LinkError("no route") if request.bucket.index == 5 else None)


def opened(sums: StubGroup, results: StubGroup, submit: Any = to_trees) -> LocalReducer:
    return LocalReducer([sums, results], submit)  # type: ignore[list-item]


def test_the_leader_submits_the_sum_to_the_trees_and_broadcasts_the_result() -> None:
    sums, results = StubGroup(), StubGroup()
    site, requests = opened(sums, results), [request_of(index) for index in range(3)]
    for future in [site.submit(request) for request in requests]:
        assert future.exception(LIMIT) is None
    assert [float(request.gradient[0]) for request in requests] == [0.5, 1.0, 1.5]
    assert all(float(request.residual[0]) == 1.0 for request in requests), "the trees send the leader's residual"
    assert (sums.calls, results.calls) == (["allreduce"] * 3, ["broadcast"] * 3)
    site.close()


def test_a_follower_adds_its_residual_to_its_first_sum_and_waits_for_the_broadcast() -> None:
    sums, results = StubGroup(), StubGroup()
    site, request = opened(sums, results, None), request_of(0, last=0)
    assert not site.leads
    assert site.submit(request).exception(LIMIT) is None
    assert float(request.gradient[0]) == 4.0
    assert float(request.residual[0]) == 0.0
    assert results.calls == ["broadcast"]
    site.close()


@pytest.mark.parametrize("failing", ["sum", "broadcast"])
def test_no_collective_is_started_after_a_failed_one(failing: str) -> None:
    sums = StubGroup(fails=1 if failing == "sum" else -1)
    results = StubGroup(fails=1 if failing == "broadcast" else -1)
    site = opened(sums, results)
    first = site.submit(request_of(0))
    assert first.exception(LIMIT) is None
    second = site.submit(request_of(1))
    assert isinstance(second.exception(LIMIT), SiteError)
    third = site.submit(request_of(2))
    assert isinstance(third.exception(LIMIT), SiteError)
    assert len(results.calls) == (2 if failing == "broadcast" else 1)
    assert len(sums.calls) == 2
    site.close()


def test_an_error_of_the_trees_is_the_error_of_the_bucket() -> None:
    site = opened(StubGroup(), StubGroup())
    error = site.submit(request_of(5)).exception(LIMIT)
    assert isinstance(error, LinkError)
    assert str(error) == "no route"
    site.close()


def test_an_abandoned_site_fails_later_buckets_and_is_unused_soon() -> None:
    site = opened(StubGroup(), StubGroup())
    site.abandon()
    site.wait_unused(LIMIT)
    assert isinstance(site.submit(request_of(0)).exception(LIMIT), SiteError)
    site.close()
