"""LocalReducer: reduces buckets inside a site, so that only its leader uses the trees between sites.

In: buckets in order, the same on all ranks of the site. Out: a future for each; its gradient then is the mean. A bucket
takes three steps:

    1. an all-reduce inside the site (`LocalSum`)
    2. the trees between sites, to which the leader submits the sum
    3. a broadcast of the result from the leader to its site (`ResultBroadcast`)

Sums and broadcasts have a thread and a process group each, so several buckets are under way at once. The leader is the
lowest rank of the site.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

import torch.distributed as dist

from gradwire.errors import LinkError
from gradwire.sites.local_sum import LocalSum, StepBucket, SubmitToTrees
from gradwire.sites.result_broadcast import ResultBroadcast, SharedReplicaState, SiteLevel
from gradwire.sites.site_groups import SiteError, SiteGroups
from gradwire.sites.step_resume import StepProgress, StepResume
from gradwire.sites.worker_thread import WorkerThread
from gradwire.tree.request import BucketRequest
from gradwire.tree.state_transfer import TransferableState


class LocalReducer:
    """One rank's part in the reductions of its site. `submit_to_trees` is None on followers.

    With `resumable` the site can continue in the middle of a step when a follower dies; it costs a copy of the
    gradient. `resume` is the rest of a step that an earlier LocalReducer of this site began.
    """

    def __init__(
        self,
        groups: Sequence[dist.ProcessGroup],
        submit_to_trees: SubmitToTrees | None,
        *,
        resumable: bool = False,
        resume: StepResume | None = None,
        state: SharedReplicaState | None = None,
    ) -> None:
        self._groups = SiteGroups(groups)
        self._submit_to_trees, self._resumable = submit_to_trees, resumable
        progress = resume.progress if resume is not None else StepProgress()
        self.local_sum = LocalSum(self._groups, submit_to_trees, progress, resumable)
        self._broadcast = ResultBroadcast(self._groups, self.leads, state)
        # The next bucket's number within its step; the resume holds for the first step only.
        self._number, self._resume = 0, resume
        self._sum_thread = WorkerThread("gradwire-site-sum")
        self._result_thread = WorkerThread("gradwire-site-broadcast")

    @property
    def leads(self) -> bool:
        return self._submit_to_trees is not None

    @property
    def progress(self) -> StepProgress:
        return self.local_sum.progress

    def submit(self, request: BucketRequest) -> Future[None]:
        """From one thread at a time. `request.done` is not called: the future replaces it."""
        bucket = StepBucket(request, self._number, self._resume)
        self._number += 1
        if request.bucket.is_last:
            self._number, self._resume = 0, None
        summed = self._sum_thread.submit(partial(self.local_sum.run, bucket))
        return self._result_thread.submit(partial(self._broadcast.run, bucket, summed))

    def resend_residuals(self) -> None:
        """Followers may have residuals again; between steps."""
        self.local_sum.sent_residuals.clear()

    def set_replica_state(self, state: TransferableState) -> SharedReplicaState:
        """On all ranks of the site, before the first step. Returns what the leader's executor is to use."""
        self._broadcast.state = SharedReplicaState(state)
        return self._broadcast.state

    def share_level(self, level: SiteLevel | None) -> None:
        """On all ranks of the site, before the first step: the leader sends its plan's level to the site."""
        self._broadcast.level = level

    # ---- a rank of the site is lost ------------------------------------------------------------------------------
    def abandon(self) -> None:
        """Start nothing more here: another LocalReducer takes over the requests and their gradients."""
        self._groups.abort()
        for thread in (self._sum_thread, self._result_thread):
            thread.stop(SiteError("a rank of this site is lost"))

    def wait_unused(self, timeout: float) -> None:
        """After `abandon`: wait until nothing here writes to a gradient. A leader may still wait for the trees: those
        results are broadcast by the LocalReducer that takes over."""
        deadline = time.monotonic() + timeout
        for thread in (self._sum_thread,) if self.leads else (self._sum_thread, self._result_thread):
            if not thread.join(max(0.0, deadline - time.monotonic())):
                raise LinkError(f"an operation inside the site did not end within {timeout:g} s")

    def resumed(self, groups: Sequence[dist.ProcessGroup], resume: StepResume) -> LocalReducer:
        """The LocalReducer of the ranks that are left, after this one was abandoned."""
        broadcast = self._broadcast
        site = LocalReducer(
            groups, self._submit_to_trees, resumable=self._resumable, resume=resume, state=broadcast.state
        )
        site.share_level(broadcast.level)
        return site

    def close(self, timeout: float = 10.0) -> None:
        for thread in (self._sum_thread, self._result_thread):
            thread.stop(LinkError("the site was closed"))
        for thread in (self._sum_thread, self._result_thread):
            thread.join(timeout)
