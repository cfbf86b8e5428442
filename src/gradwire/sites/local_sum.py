"""LocalSum: sums a bucket over the ranks of a site; the leader submits the sum to the trees between sites.

In: the buckets of a step, in order. Out: a future of each bucket's result between sites; followers wait for the
broadcast instead, so theirs is done already.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

from gradwire.sites.site_groups import SiteGroups
from gradwire.sites.step_resume import StepProgress, StepResume
from gradwire.sites.worker_thread import complete, finished
from gradwire.tree.request import BucketRequest

SubmitToTrees = Callable[[BucketRequest], None]


@dataclass(frozen=True, slots=True)
class StepBucket:
    """A bucket, its number within the step, and how the step is resumed if an earlier LocalReducer began it."""

    request: BucketRequest
    number: int
    resume: StepResume | None = None


class LocalSum:
    """One rank's part in the sums. `submit_to_trees` is None on followers; `keep` saves gradients for a resume."""

    def __init__(
        self, groups: SiteGroups, submit_to_trees: SubmitToTrees | None, progress: StepProgress, keep: bool
    ) -> None:
        self._groups, self._submit_to_trees, self._keep = groups, submit_to_trees, keep
        self.progress = progress
        # Memory addresses of residuals that were sent and stay empty.
        self.sent_residuals: set[int] = set()

    def run(self, bucket: StepBucket) -> Future[None]:
        self._groups.check_open()
        number, resume, progress = bucket.number, bucket.resume, self.progress
        if resume is not None and number < resume.summed:
            return progress.tree_results[number] if self._submit_to_trees is not None else finished()
        self._prepare(bucket)
        if self._keep:
            progress.save(number, bucket.request.gradient)
        self._groups.all_reduce(bucket.request.gradient)
        result: Future[None] = Future() if self._submit_to_trees is not None else finished()
        progress.add_sum(number, result)
        if self._submit_to_trees is not None:
            weight = self._groups.size if resume is None else resume.weight
            self._submit_to_trees(replace(bucket.request, done=partial(complete, result), weight=weight))
        return result

    def _prepare(self, bucket: StepBucket) -> None:
        """The gradient as this rank contributes it."""
        resume = bucket.resume
        if resume is not None:
            resume.prepare(bucket.number, bucket.request.gradient)
        elif not bucket.number:
            self.progress.clear()
        if resume is None or resume.contributes:
            self._add_residual(bucket.request)

    def _add_residual(self, request: BucketRequest) -> None:
        """The trees only send the leader's residual. A follower's, from a job that had other sites or none, is added to
        its first sum; it stays empty afterwards."""
        if self._submit_to_trees is None and request.residual.data_ptr() not in self.sent_residuals:
            self.sent_residuals.add(request.residual.data_ptr())
            request.gradient.add_(request.residual)
            request.residual.zero_()
