"""GPU exchange: two ranks in one process exchange buckets of device memory, and the same buckets in host memory.

In: a level, and where buckets are. Out: what each rank restored. Both ways run the code of training: the host path,
the compressed path, the pipeline, and lanes that stay in this process.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from gradwire.clock import MonotonicClock
from gradwire.compress.codec_cache import CodecCache
from gradwire.compress.error_feedback import ErrorFeedback
from gradwire.config import CompressConfig
from gradwire.device.base import FindDevice
from gradwire.device.event_watcher import EventWatcher
from gradwire.events import Event
from gradwire.exchange.select import FootprintTable, lanes_needed
from gradwire.level import Level
from gradwire.runtime.bucket_work import PendingBucket
from gradwire.runtime.compressed_path import CompressedPath
from gradwire.runtime.device_path import DevicePath
from gradwire.runtime.event_reporter import EventReporter
from gradwire.runtime.host_path import HostPath
from gradwire.runtime.loss_scaling import LossScaling
from gradwire.runtime.path import PathContext
from gradwire.runtime.pipeline import Pipeline
from gradwire.runtime.transport_switch import OpenTransport, TransportSwitch
from gradwire.sense.step_timer import StepTimer
from gradwire.transport.lanes.loopback import Loopback
from gradwire.types import Bucket, ParameterSlice

RANKS = 2
STEPS = 3

# Puts a gradient on the device, as backward does, and returns the bucket's memory.
Compute = Callable[[Tensor], Tensor]


class _NoWeights:
    def read(self, start: int, numel: int) -> Tensor:
        raise AssertionError("only pruning reads weights")

    def zero(self, places: Tensor) -> None:
        raise AssertionError("only pruning writes weights")


class _NoEvents:
    def emit(self, event: Event) -> None:
        """Nobody reads them."""


class _Rank:
    """What `runtime/builder.py` makes for a rank, without a process group."""

    def __init__(self, rank: int, lanes: list[Loopback], find_device: FindDevice, compress: CompressConfig) -> None:
        clock, codecs = MonotonicClock(), CodecCache(False)
        feedback = ErrorFeedback(rank, RANKS, compress.residual_type)
        self._pipeline = Pipeline([lane.lane(rank) for lane in lanes], lambda timing: None)
        footprint = FootprintTable(RANKS, own_wire=False)
        transport = OpenTransport(
            kind="group", pipeline=self._pipeline, footprint=footprint, own_wire=False, tolerance=1.0
        )
        self._context = PathContext(
            rank=rank,
            world_size=RANKS,
            compress=compress,
            feedback=feedback,
            codecs=codecs,
            scaling=LossScaling(feedback, codecs),
            transports=TransportSwitch(transport),
            reporter=EventReporter(_NoEvents(), clock),
            timer=StepTimer(),
            watcher=EventWatcher(clock),
            find_device=find_device,
        )
        self._path, self._host = CompressedPath(self._context), HostPath(self._context)
        self._device = DevicePath(self._context, self._path) if compress.encode == "gpu" else None

    def exchange(self, step: int, buffer: Tensor, level: Level) -> Tensor:
        """Replace the buffer by the mean over both ranks."""
        parts = (ParameterSlice("w", 0, (buffer.numel(),), buffer.numel()),)
        bucket = Bucket(0, step, buffer.numel(), buffer.element_size(), parts, is_last=True)
        staged = self._host.stage(bucket, buffer)
        work: PendingBucket
        if staged is None:
            work = self._path.submit(bucket, buffer, level, _NoWeights())
        elif self._device is not None and self._device.takes(self._path, level):
            work = self._device.submit(staged, level)
        else:
            work = self._host.submit(self._path, staged, level, _NoWeights())
        self._host.after_buckets(self._path.end_step)
        work.wait()
        return work.restored

    def close(self) -> None:
        self._host.close_downloads()
        self._pipeline.close()
        self._host.close_uploads()
        self._context.watcher.close()


def exchanged(
    level: str,
    numel: int,
    dtype: torch.dtype,
    compute: Compute,
    read: Compute,
    find_device: FindDevice,
    compress: CompressConfig,
) -> list[Tensor]:
    """What both ranks restored in some steps, in host memory; `read` copies it from the device."""
    lanes = [Loopback(RANKS) for _ in range(lanes_needed(Level.parse(level)))]
    ranks = [_Rank(rank, lanes, find_device, compress) for rank in range(RANKS)]

    def run(number: int) -> list[Tensor]:
        found = []
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(RANKS * step + number)
            gradient = torch.randn(numel, generator=generator).to(dtype)
            found.append(read(ranks[number].exchange(step, compute(gradient), Level.parse(level))))
        return found

    try:
        with ThreadPoolExecutor(RANKS) as pool:
            return [one for own in pool.map(run, range(RANKS)) for one in own]
    finally:
        for rank in ranks:
            rank.close()
