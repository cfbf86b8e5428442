"""A step can be repeated from its snapshot; with one, requests are done when the whole step is."""

from __future__ import annotations

import torch

from gradwire.level import Level
from gradwire.tree.pending_requests import PendingRequests
from gradwire.tree.request import BucketRequest
from gradwire.tree.step_snapshot import StepSnapshot
from gradwire.types import Bucket

Reports = list[tuple[int, BaseException | None]]


def request(index: int, reports: Reports | None = None, last: bool = False, numel: int = 4) -> BucketRequest:
    bucket = Bucket(index, 7, numel, 4, (), last)
    gradient, residual = torch.full((numel,), float(index + 1)), torch.full((numel,), 0.5)
    kept = reports if reports is not None else []
    return BucketRequest(bucket, Level.parse("int8"), gradient, residual, lambda error: kept.append((index, error)))


def test_rewinding_restores_gradients_and_residuals_of_the_whole_step() -> None:
    snapshot = StepSnapshot()
    requests = [request(0), request(1, last=True)]
    for one in requests:
        snapshot.add(one)
        one.gradient.zero_()
        one.residual.fill_(torch.nan)
    for _ in range(2):
        assert snapshot.rewind() == requests
        for index, one in enumerate(requests):
            assert one.gradient.tolist() == [index + 1.0] * 4
            assert one.residual.tolist() == [0.5] * 4
            one.gradient.fill_(9)


def test_a_step_is_closed_by_its_last_bucket() -> None:
    snapshot = StepSnapshot()
    assert not snapshot.closed
    snapshot.add(request(0))
    assert not snapshot.closed
    snapshot.add(request(1, last=True))
    assert snapshot.closed
    snapshot.end(7)
    assert not snapshot.closed


def test_a_discarded_step_is_repeated_without_this_members_contribution() -> None:
    snapshot = StepSnapshot()
    snapshot.add(request(0))
    snapshot.discard()
    (repeated,) = snapshot.rewind()
    assert repeated.weight == 0
    assert not repeated.gradient.any()
    assert not repeated.residual.any()


def test_results_are_copies_of_the_last_step_only() -> None:
    snapshot = StepSnapshot()
    for step, numel in ((7, 4), (8, 4), (9, 6)):
        one = request(0, last=True, numel=numel)
        snapshot.add(one)
        one.gradient.fill_(step)
        snapshot.end(step)
        one.gradient.zero_()
        assert snapshot.results(step)[0].tolist() == [step] * numel
        assert snapshot.results(step - 1) == {}


def test_without_a_snapshot_each_bucket_is_reported_when_it_is_reduced() -> None:
    reports: Reports = []
    pending = PendingRequests()
    first, second = request(0, reports), request(1, reports, last=True)
    pending.add(first)
    pending.add(second)
    pending.bucket_done(second)
    assert reports == [(1, None)]
    pending.step_done(7)
    assert reports == [(1, None)]
    pending.bucket_done(first)
    assert reports == [(1, None), (0, None)]


def test_with_a_snapshot_all_buckets_are_reported_when_the_step_is_complete() -> None:
    reports: Reports = []
    pending = PendingRequests(StepSnapshot())
    requests = [request(0, reports), request(1, reports, last=True)]
    for one in requests:
        pending.add(one)
        pending.bucket_done(one)
    assert reports == []
    pending.step_done(7)
    assert reports == [(0, None), (1, None)]


def test_a_failure_reports_every_open_request_once_and_those_not_taken_yet() -> None:
    reports: Reports = []
    pending = PendingRequests()
    done, still_open, not_taken = (request(index, reports) for index in range(3))
    pending.add(done)
    pending.add(still_open)
    pending.bucket_done(done)
    error = ConnectionError("a peer is lost")
    pending.fail(error, [not_taken])
    assert reports == [(0, None), (1, error), (2, error)]
    pending.fail(error, [])
    assert len(reports) == 3
