"""Paths: the ways by which a session can synchronise a bucket, and what they share.

    PlainPath        what DDP does, on its process group; whole values over a wire of gradwire's own
    CompressedPath   chunks, codecs and exchanges through the pipeline
    TreePath         the trees of the plan in force

A path takes a bucket on the training thread and returns its work at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from gradwire.compress.base import Weights
from gradwire.compress.codec_cache import CodecCache
from gradwire.compress.error_feedback import ErrorFeedback
from gradwire.config import CompressConfig
from gradwire.device.base import FindDevice
from gradwire.device.cuda import find_device
from gradwire.device.event_watcher import EventWatcher
from gradwire.exchange.buffer_pool import BufferPool
from gradwire.level import Level
from gradwire.runtime.bucket_work import BucketWork, PendingBucket
from gradwire.runtime.event_reporter import EventReporter
from gradwire.runtime.loss_scaling import LossScaling
from gradwire.runtime.pipeline import Pipeline
from gradwire.runtime.transport_switch import TransportSwitch
from gradwire.sense.step_timer import StepTimer
from gradwire.types import Bucket


class BucketPath(Protocol):
    """One way to replace a bucket's gradient by its mean over all ranks."""

    def in_host_memory(self, buffer: Tensor) -> bool:
        """Whether this path takes the bucket from host memory; a session copies it there (host_path.py)."""
        ...

    def submit(self, bucket: Bucket, buffer: Tensor, level: Level, weights: Weights) -> PendingBucket: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PathContext:
    """What all paths of a session share."""

    rank: int
    world_size: int
    compress: CompressConfig
    feedback: ErrorFeedback
    codecs: CodecCache
    scaling: LossScaling
    transports: TransportSwitch
    reporter: EventReporter
    timer: StepTimer
    # Notes when gradients are ready, and when collectives of the backend end, on devices.
    watcher: EventWatcher
    find_device: FindDevice = find_device
    buffers: BufferPool = field(default_factory=BufferPool)

    @property
    def pipeline(self) -> Pipeline:
        """Of the transport that carries the step in progress."""
        return self.transports.current.pipeline

    def work(self, bucket: Bucket, level: Level, buffer: Tensor, values: Tensor) -> BucketWork:
        return BucketWork(self.reporter, self.world_size, bucket, level, buffer, values)
