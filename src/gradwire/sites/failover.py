"""SiteFailover: lets a site continue when one of its ranks is lost, under a new leader if the leader died.

In: requests, as LocalReducer takes them, and a function that rebuilds the site. Out: a future for each request,
completed by the first or by a rebuilt LocalReducer. When a collective inside the site fails, the ranks that are left

    1. close their connections inside the site, so that all of them notice, and wait for the step's last bucket
    2. agree in torch's store on who is left (`FailoverStore`)
    3. create process groups of their own, without the lost rank
    4. if the leader is alive, it continues where it was (`StepResume`)
       if not, they repeat the step: the lowest rank leads, joins the other sites like a member that was disconnected,
       receives their state and passes it on (`SharedReplicaState`)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from gradwire.errors import GradwireError, LinkError
from gradwire.sites.local_reduce import LocalReducer
from gradwire.sites.result_broadcast import SharedReplicaState
from gradwire.sites.site_groups import SiteError
from gradwire.sites.step_resume import StepPosition
from gradwire.sites.worker_thread import complete
from gradwire.tree.request import BucketRequest
from gradwire.tree.state_transfer import TransferableState

# Seconds to wait for the rebuilding thread at the end: it may be inside a call to the store.
JOIN_TIMEOUT: Final = 10.0
# The site of the n-th generation, from the one before it and this rank's position; LinkError when nothing can be built.
Rebuild = Callable[[int, LocalReducer, StepPosition], LocalReducer]


@dataclass(slots=True)
class _Pending:
    """A request of the current step; `reported` once its result is final."""

    request: BucketRequest
    result: Future[None] = field(default_factory=Future)
    reported: bool = False


class SiteFailover:
    """One rank's part in a site that survives the loss of a rank. Safe to use from several threads."""

    def __init__(self, site: LocalReducer, rebuild: Rebuild, timeout: float) -> None:
        self._site, self._rebuild, self._timeout = site, rebuild, timeout
        self._has_state = False
        self._generation = 0
        self._step: list[_Pending] = []
        self._failed = self._closed = False
        self._final_error: GradwireError | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._abandoned: list[LocalReducer] = []

    def set_replica_state(self, state: TransferableState) -> SharedReplicaState:
        """As in LocalReducer. Without this call a site is not rebuilt."""
        self._has_state = True
        return self._site.set_replica_state(state)

    def submit(self, request: BucketRequest) -> Future[None]:
        pending = _Pending(request)
        with self._changed:
            if self._final_error is not None:
                pending.result.set_exception(self._final_error)
                return pending.result
            if self._all_submitted:
                self._step = []
            self._step.append(pending)
            self._changed.notify_all()
            if self._failed:
                return pending.result  # submitted with the others once the site is rebuilt
            site, generation = self._site, self._generation
        self._pass_on(pending, site, generation)
        return pending.result

    def resend_residuals(self) -> None:
        self._site.resend_residuals()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(JOIN_TIMEOUT)
        for site in self._abandoned:
            site.close(1.0)  # what is still under way there waits for the lost rank
        self._site.close()

    @property
    def _all_submitted(self) -> bool:
        """Whether all buckets of the step were submitted."""
        return bool(self._step) and self._step[-1].request.bucket.is_last

    def _pass_on(self, pending: _Pending, site: LocalReducer, generation: int) -> None:
        site.submit(pending.request).add_done_callback(partial(self._finished, pending, generation))

    def _finished(self, pending: _Pending, generation: int, result: Future[None]) -> None:
        error = result.exception()
        with self._changed:
            lost = isinstance(error, SiteError)
            if generation != self._generation or (self._failed and lost):
                return
            if lost and self._has_state:
                self._failed = True
                self._thread = threading.Thread(target=self._run_rebuild, name="gradwire-failover", daemon=True)
                self._thread.start()
                return
            if pending.reported:
                return  # an earlier site had the result
            pending.reported = True
        complete(pending.result, error)

    def _run_rebuild(self) -> None:
        try:
            site = self._rebuilt(self._site, self._generation + 1)
        except Exception as error:  # the top of this thread: all pending requests get the error
            self._give_up(
                error if isinstance(error, GradwireError) else LinkError(f"the site cannot continue: {error}")
            )
            return
        with self._changed:
            self._site, self._failed = site, False
            self._generation += 1
            step, generation = list(self._step), self._generation
        for pending in step:  # 4
            self._pass_on(pending, site, generation)

    def _rebuilt(self, old: LocalReducer, generation: int) -> LocalReducer:
        old.abandon()  # 1
        self._abandoned.append(old)
        with self._changed:
            if not self._changed.wait_for(lambda: self._all_submitted or self._closed, self._timeout):
                raise LinkError(
                    f"a rank of this site is lost, and the step's last bucket was not ready within {self._timeout:g} s"
                )
            if self._closed:
                raise LinkError("a rank of this site is lost, and the job was closed before the site was rebuilt")
        old.wait_unused(self._timeout)
        return self._rebuild(generation, old, self._position())  # 2, 3

    def _position(self) -> StepPosition:
        with self._changed:
            received = sum(pending.reported for pending in self._step)
            return StepPosition(self._step[0].request.bucket.step, received, self._site.progress.summed)

    def _give_up(self, error: GradwireError) -> None:
        with self._changed:
            self._final_error = error
            self._generation += 1
            left = [pending for pending in self._step if not pending.reported]
            for pending in left:
                pending.reported = True
        for pending in left:
            pending.result.set_exception(error)
