"""Pending requests: reports each request as done, once, when its bucket or its whole step is reduced.

With a snapshot (elastic plans) requests are reported only when the step is complete, because until then a lost member
may force the step to be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable

from gradwire.tree.request import BucketRequest, Done
from gradwire.tree.step_snapshot import StepSnapshot


class PendingRequests:
    """The submitted requests that are not done."""

    def __init__(self, snapshot: StepSnapshot | None = None) -> None:
        self.snapshot = snapshot
        self._done: dict[int, Done] = {}

    def add(self, request: BucketRequest) -> None:
        self._done[request.bucket.index] = request.done
        if self.snapshot is not None:
            self.snapshot.add(request)

    def bucket_done(self, request: BucketRequest) -> None:
        if self.snapshot is None:
            self._finish(request)

    def step_done(self, step: int) -> None:
        for request in self.snapshot.end(step) if self.snapshot is not None else ():
            self._finish(request)

    def fail(self, error: BaseException, submitted: Iterable[BucketRequest]) -> None:
        """Report all of them, and those just `submitted`, as failed."""
        pending, self._done = list(self._done.values()), {}
        for done in (*pending, *(request.done for request in submitted)):
            done(error)

    def _finish(self, request: BucketRequest) -> None:
        self._done.pop(request.bucket.index)(None)
