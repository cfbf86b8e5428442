"""Session: synchronises one model's gradient buckets on one rank.

    bucket -> decide -> record the decision -> choose a path -> submit -> settle -> verify

`synchronise` is called on the training thread and returns a future at once. It blocks only at a step's first bucket,
where the governor may wait for pulses. Everything else that takes time happens in other threads; `settle` waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.futures import Future

from gradwire.closing import Closing
from gradwire.compress.base import Weights
from gradwire.compress.gradient_sample import GradientSampler
from gradwire.device.cuda import require_known
from gradwire.level import Level
from gradwire.runtime.bucket_work import PendingBucket
from gradwire.runtime.compressed_path import CompressedPath
from gradwire.runtime.device_path import DevicePath
from gradwire.runtime.event_reporter import EventReporter
from gradwire.runtime.governor import Governor
from gradwire.runtime.host_path import HostPath
from gradwire.runtime.loss_scaling import LossScaling
from gradwire.runtime.path import BucketPath
from gradwire.runtime.plain_path import PlainPath
from gradwire.runtime.profiling import span
from gradwire.runtime.replica_verifier import ReplicaVerifier
from gradwire.runtime.tree_path import TreePath
from gradwire.sense.step_timer import StepTimer
from gradwire.tree.state_transfer import TransferableState
from gradwire.types import Bucket, Decision

DETACHED = Decision(Level(), "gradwire was detached")
SPARSE = Decision(Level(), "sparse gradients are reduced as plain DDP does, by the model's process group")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionParts:
    """What a session is built from."""

    governor: Governor
    plain: PlainPath
    compressed: CompressedPath
    # Where a plan is in force, the path of every dense bucket.
    tree: TreePath
    # Copies buckets of device memory for paths that work in host memory.
    host: HostPath
    # Encodes them there, where that is configured.
    device: DevicePath | None = None
    scaling: LossScaling
    reporter: EventReporter
    timer: StepTimer
    verifier: ReplicaVerifier | None = None
    # Whether a controller may choose levels that need gradients in host memory.
    adaptive: bool = False
    # On rank 0 of a job with a controller.
    sampler: GradientSampler | None = None
    # Called in this order by `close`.
    closers: tuple[Callable[[], None], ...] = ()


class Session:
    """Sends each bucket by one of three paths. `step` counts the job's steps; the integration advances it."""

    def __init__(self, parts: SessionParts) -> None:
        self._parts = parts
        self._decided: dict[int, tuple[Level, int]] = {}
        self._verifier = parts.verifier
        self._detached = False
        self._open = Closing(*parts.closers)
        self._in_flight: list[PendingBucket] = []
        self.scaling = parts.scaling
        self.step = self._bucket_step = 0

    def synchronise(self, bucket: Bucket, buffer: Tensor, weights: Weights) -> Future[Tensor]:
        """Replace the bucket's flat gradient by its mean over all ranks; the future holds the same buffer."""
        with span("hook"):
            self._bucket_step = bucket.step
            if self._parts.adaptive and not self._detached:
                require_known(buffer)
            decision = self._decide(bucket, buffer.is_sparse)
            if self._decided.get(bucket.index) != (decision.level, decision.sync_every):
                self._decided[bucket.index] = decision.level, decision.sync_every
                self._parts.reporter.decided(bucket, decision)
            if self._parts.sampler is not None and not (buffer.is_sparse or self._detached):
                self._parts.sampler.add(buffer, self._parts.host.find_device(buffer))
            with self._parts.reporter.reporting(bucket.step):
                if buffer.is_sparse and bucket.is_last and self._trees:
                    self._end_tree_step(bucket, buffer.device, weights)
                work = self._submit(
                    self._path(buffer.is_sparse, decision.level), bucket, buffer, decision.level, weights
                )
            return work.future

    def reporting(self) -> AbstractContextManager[None]:
        """A LinkError that is raised within, by what ranks send beside buckets, is reported as one of this step."""
        return self._parts.reporter.reporting(self.step)

    def needed(self) -> None:
        """Training needs the results from now on: until here it did not wait for them, although buckets were ready."""
        self._parts.timer.needed(self._parts.reporter.clock.now())

    def settle(self) -> None:
        """Wait until every bucket of this backward is restored; the first failure is raised with its own type."""
        works, self._in_flight = self._in_flight, []
        self._parts.host.after_buckets(self._parts.compressed.end_step)
        try:
            for work in works:
                with span("settle"):
                    work.wait()
            step_ended, self._bucket_step = self.step > self._bucket_step, self.step
            self.scaling.settle((work.finite() for work in works), step_ended)
            if works and self._verifier is not None:
                self._verifier.check(self.step, [work.restored for work in works])
        except BaseException:
            self._parts.timer.drop()
            raise

    def set_replica_state(self, state: TransferableState) -> None:
        """Set the state that a rejoining rank receives; without a plan no rank rejoins."""
        self._parts.tree.set_replica_state(state)

    def detach(self) -> None:
        """Use plain DDP from the next step on; report the steps so far."""
        if not self._detached:
            self._detached = True
            self._parts.plain.detach()
            self._parts.governor.finish()

    def close(self) -> None:
        """Close every part, also where one raises. The first error is raised; a second call closes what is still
        open."""
        try:
            self.detach()
        finally:
            self._verifier = None
            self._open.close()

    def _decide(self, bucket: Bucket, sparse: bool) -> Decision:
        if self._detached:
            return SPARSE if sparse else DETACHED
        governor = self._parts.governor
        if bucket.index == bucket.first:
            with self._parts.reporter.reporting(bucket.step):
                self._parts.host.catch_up()
            governor.begin_step(bucket)
        else:
            governor.add_bucket(bucket)
        return SPARSE if sparse else governor.decision

    @property
    def _trees(self) -> bool:
        return self._parts.tree.reducer is not None and not self._detached

    def _path(self, sparse: bool, level: Level) -> BucketPath:
        parts = self._parts
        if self._trees and not sparse:
            return parts.tree
        return parts.plain if sparse or level.off else parts.compressed

    def _submit(
        self, path: BucketPath, bucket: Bucket, buffer: Tensor, level: Level, weights: Weights
    ) -> PendingBucket:
        host, timer = self._parts.host, self._parts.timer
        in_host_memory = path.in_host_memory(buffer)
        if in_host_memory:
            require_known(buffer)
        staged = host.stage(bucket, buffer)
        if not self._detached:
            host.when_ready(staged, lambda now: timer.bucket_ready(now, bucket.nbytes))
        device = self._parts.device
        work: PendingBucket
        if staged is None or not in_host_memory:
            work = path.submit(bucket, buffer, level, weights)
        elif device is not None and device.takes(path, level):
            work = device.submit(staged, level)
        else:
            work = host.submit(path, staged, level, weights)
        self._in_flight.append(work)
        return work

    def _end_tree_step(self, bucket: Bucket, device: torch.device, weights: Weights) -> None:
        """A step of the trees ends with the last bucket. This one is sparse and goes through the process group: one
        element is sent over the trees instead."""
        one = torch.zeros(1, dtype=torch.float32, device=device)
        self._submit(self._parts.tree, replace(bucket, numel=1), one, Level(), weights)
