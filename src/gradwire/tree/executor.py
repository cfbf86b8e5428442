"""Executor: runs one member's tree all-reduce on one thread, over any plan and any wire.

In: bucket requests from the training thread (`submit`), in the same order on every rank. Out: each request's gradient
overwritten by the mean, then its `done` called. The first failure ends the executor: pending and later requests fail
with the same error.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

from gradwire.errors import GradwireError, LinkError
from gradwire.level import Level
from gradwire.tree.accumulator import check_summable
from gradwire.tree.elastic_controller import ElasticController
from gradwire.tree.lost_peer import LostPeerError
from gradwire.tree.plan_manager import PlanManager
from gradwire.tree.request import BucketRequest
from gradwire.tree.side_routes import SideRoutes
from gradwire.tree.state_transfer import TransferableState
from gradwire.tree.step_runner import StepRunner

# The thread checks deadlines and control messages at least this often (seconds).
TICK: Final = 0.25


class TreeExecutor:
    """Owns its thread and the FrameIO; the wire belongs to the caller. `elastic` if members may be lost."""

    def __init__(
        self, runner: StepRunner, manager: PlanManager | None = None, elastic: ElasticController | None = None
    ) -> None:
        self.member, self.frame_io, self.manager = runner.member, runner.frame_io, manager
        self._runner, self._elastic = runner, elastic
        self._inbox: queue.SimpleQueue[BucketRequest | Callable[[], object] | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._closing = self._closed = False
        self._thread = threading.Thread(target=self._run, name="gradwire-tree", daemon=True)
        self._lock = threading.Lock()

    @property
    def used_level(self) -> Level | None:
        """The level of the last completed step, where the plan decides it."""
        return self._runner.used_level

    @property
    def side_routes(self) -> SideRoutes | None:
        return self._runner.side_routes

    @property
    def unreachable(self) -> set[int]:
        """Members that left or to which there is no connection."""
        return self.frame_io.disconnected | self.frame_io.left

    def start(self) -> None:
        """Listen to the other members and start the thread. A member that is not in the plan connects to them first."""
        if self.manager is not None:
            self.manager.begin(self.now())
        if self.member.membership.fresh and self._elastic is not None:
            self._elastic.connect()
        self._thread.start()

    def now(self) -> float:
        return self.frame_io.now()

    def submit(self, request: BucketRequest) -> None:
        """From any thread. `done` is called once, on the executor's thread."""
        check_summable(request.level)
        with self._lock:
            if self._failure is None and not self._closing:
                self._inbox.put(request)
                self.frame_io.wake()
                return
        request.done(self._failure or LinkError("the tree executor was closed"))

    def call_soon(self, task: Callable[[], object]) -> None:
        """From any thread: run `task` on the executor's thread, the only one that may use member and FrameIO."""
        self._inbox.put(task)
        self.frame_io.wake()

    def set_replica_state(self, state: TransferableState) -> None:
        """From any thread: the state that members receive when they rejoin, and that this one replaces if it does."""
        elastic = self._elastic
        if elastic is not None:
            self.call_soon(lambda: elastic.set_replica_state(state))

    def close(self, timeout: float = 10.0) -> None:
        """Send the frames that others still need, then stop the thread. May be called again after an error."""
        with self._lock:
            again, self._closing = self._closing, True
            if self._closed:
                return
            if not again and self._elastic is not None and self._failure is None:
                self._inbox.put(self._elastic.announce_leave)
        if not again:
            self._inbox.put(None)
            self.frame_io.wake()
        if self._thread.is_alive():
            self._thread.join(timeout)
        if self._thread.is_alive():
            raise LinkError(f"the tree executor still waits for a peer after {timeout:g} s; close again later")
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed:
            self.frame_io.close()

    # ---- the thread ----------------------------------------------------------------------------------------------
    def _run(self) -> None:
        deadline = float("inf")
        try:
            while not (self._closing and self._inbox.empty() and (self.frame_io.idle or self.now() > deadline)):
                if self._closing and deadline == float("inf"):
                    deadline = self.now() + 5.0
                self._poll()
        except BaseException as error:  # the top of this thread: every pending request gets the error
            self._fail(error)
            self._announce_failure()

    def _poll(self) -> None:
        try:
            self._drain_inbox()
            self.frame_io.poll(TICK)
            if self.manager is not None:
                self.manager.tick(self.now())
        except LostPeerError as error:
            if self._elastic is None:
                raise
            self._elastic.lose(error, self._closing)
        if self._elastic is not None:
            self._elastic.poll(self.now(), self._closing)

    def _drain_inbox(self) -> None:
        while not self._inbox.empty():
            item = self._inbox.get()
            if isinstance(item, BucketRequest):
                self._accept(item)
            elif item is not None:
                item()
        self._runner.admit()

    def _accept(self, request: BucketRequest) -> None:
        self._runner.pending.add(request)
        if self._elastic is None or self._elastic.may_start():
            self._runner.start(request)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            failure = self._failure = error if isinstance(error, GradwireError) else _wrapped(error)
        submitted = []
        while not self._inbox.empty():
            item = self._inbox.get()
            if isinstance(item, BucketRequest):
                submitted.append(item)
        self._runner.pending.fail(failure, submitted)

    def _announce_failure(self) -> None:
        """Send the reason to the other members; takes a second at most, whatever the state of the wire."""
        assert self._failure is not None
        deadline = self.now() + 1.0
        try:
            self.frame_io.drop()
            if self.manager is not None:
                self.manager.abort(self._failure)
            while not self.frame_io.idle and self.now() < deadline:
                self.frame_io.poll(deadline - self.now())
        except Exception:  # the failure was reported already; a second one adds nothing
            return


def _wrapped(error: BaseException) -> BaseException:
    return LinkError(f"the tree executor stopped: {type(error).__name__}: {error}")
