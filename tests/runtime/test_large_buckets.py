"""Large models: a bucket of a gigabyte, and ten thousand buckets, work within the memory that docs/gpu.md states.

One rank of four runs; its lanes give it its own frames as those of the others, so the mean is about its own gradient.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gradwire.clock import MonotonicClock
from gradwire.compress.codec_cache import CodecCache
from gradwire.compress.error_feedback import ErrorFeedback
from gradwire.compress.residual import DTYPES, ResidualType
from gradwire.config import CompressConfig
from gradwire.device.event_watcher import EventWatcher
from gradwire.events import Event
from gradwire.level import Level
from gradwire.runtime.compressed_path import CompressedPath
from gradwire.runtime.event_reporter import EventReporter
from gradwire.runtime.loss_scaling import LossScaling
from gradwire.runtime.path import PathContext
from gradwire.runtime.pipeline import Pipeline
from gradwire.sense.step_timer import StepTimer
from gradwire.transport.lanes.base import AllGather, AllToAll, Op, Timing
from gradwire.types import Bucket, ParameterSlice
from tests.runtime.sessions import ConstantWeights
from tests.runtime.transports import transport_of

RANKS = 4
STEPS = 2
FIXED = 64 << 20  # threads, code, and what is allocated once
OBJECTS = 8 << 10  # Python's, of a bucket


class MirrorLane:
    """What this rank sends to itself, everybody sent."""

    def start(self, op: Op) -> MirrorLane:
        assert isinstance(op, AllGather | AllToAll)
        parts = op.receive.view(RANKS, -1)
        parts.copy_(op.send.view(-1, parts.shape[1])[:1].expand_as(parts))
        return self

    def wait(self) -> Timing:
        return Timing("mirror", 0, 0.0, 0.0)

    def close(self) -> None:
        """Nothing is open."""


class _NoEvents:
    def emit(self, event: Event) -> None:
        """Nobody reads them."""


def path(kept: ResidualType) -> tuple[CompressedPath, PathContext]:
    feedback, codecs = ErrorFeedback(0, RANKS, kept), CodecCache()
    context = PathContext(
        rank=0,
        world_size=RANKS,
        compress=CompressConfig(),
        feedback=feedback,
        codecs=codecs,
        scaling=LossScaling(feedback, codecs),
        transports=transport_of(Pipeline([MirrorLane() for _ in range(4)], lambda timing: None), RANKS),
        reporter=EventReporter(_NoEvents(), MonotonicClock()),
        timer=StepTimer(),
        watcher=EventWatcher(MonotonicClock()),
    )
    return CompressedPath(context), context


def synchronised(numel: int, count: int, level: str, kept: ResidualType) -> int:
    """The most bytes that the process needed beside the gradients, in all steps."""
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(numel, generator=generator) for _ in range(count)]
    compressed, context = path(kept)
    before = resident("VmRSS")
    for step in range(STEPS):
        works = []
        for index, gradient in enumerate(gradients):
            gradient[:: numel // 8] = 9.0 + step
            part = ParameterSlice(f"p{index}", 0, (numel,), numel)
            bucket = Bucket(index, step, numel, 4, (part,), is_last=index == count - 1)
            works.append(compressed.submit(bucket, gradient, Level.parse(level), ConstantWeights(1)))
        for work in works:
            work.wait()
    most = resident("VmHWM") - before
    for gradient in gradients:
        assert gradient[0] == pytest.approx(9.0 + STEPS - 1, rel=0.05)
        assert gradient.isfinite().all()
    context.pipeline.close()
    return most


def resident(name: str) -> int:
    """A field of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel's own count of memory is needed")
@pytest.mark.parametrize(
    ("numel", "count", "level", "kept", "bytes_per_parameter"),
    [
        (1 << 28, 1, "int8", "float32", 6.1),
        (1 << 28, 1, "int8", "bfloat16", 3.6),
        (1 << 28, 1, "topk:0.01+int8", "float32", 6.2),
        (1 << 28, 1, "topk:0.01+int8", "bfloat16", 4.7),
        (2048, 10_000, "int8", "float32", 6.1),
        (2048, 10_000, "int8", "bfloat16", 3.6),
    ],
)
def test_memory_is_what_the_documentation_states(
    numel: int, count: int, level: str, kept: ResidualType, bytes_per_parameter: float
) -> None:
    """Residual 4 or 2, residual of this rank's shard a fourth of it; the frames of the bucket, or the mean of a chunk:
    a chunk of the sparse level is the whole bucket, so its mean is another 4 / 4, and so is a shard's residual as
    float32."""
    program = (
        f"from tests.runtime.test_large_buckets import *; print(synchronised({numel}, {count}, {level!r}, {kept!r}))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True, timeout=170)
    most, parameters = int(done.stdout), numel * count
    assert DTYPES[kept].itemsize * parameters <= most <= bytes_per_parameter * parameters + FIXED + OBJECTS * count
