"""Sessions of several ranks in one process, over loopback lanes, with a level that the test sets at every step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.futures import Future

from gradwire.clock import MonotonicClock
from gradwire.compress.base import Weights
from gradwire.compress.codec_cache import CodecCache
from gradwire.compress.error_feedback import ErrorFeedback, MakeZeros, Place, host_zeros
from gradwire.compress.residual import ResidualType
from gradwire.config import CompressConfig
from gradwire.device.base import FindDevice
from gradwire.device.cuda import find_device
from gradwire.device.event_watcher import EventWatcher
from gradwire.device.pinned_copy import SLOT
from gradwire.events import Event
from gradwire.level import Level
from gradwire.runtime.compressed_path import CompressedPath
from gradwire.runtime.device_path import DevicePath
from gradwire.runtime.event_reporter import EventReporter
from gradwire.runtime.host_path import HostPath
from gradwire.runtime.loss_scaling import LossScaling
from gradwire.runtime.path import PathContext
from gradwire.runtime.pipeline import Pipeline
from gradwire.runtime.plain_path import AllReduceMean, PlainPath
from gradwire.runtime.session import Session, SessionParts
from gradwire.runtime.tree_path import TreePath
from gradwire.sense.step_timer import StepTimer
from gradwire.transport.lanes.base import AllReduce
from gradwire.transport.lanes.loopback import Loopback, Loss
from gradwire.types import Bucket, Decision, ParameterSlice
from tests.runtime.transports import transport_of

Shapes = Sequence[Sequence[tuple[str, tuple[int, ...]]]]
LANES = 4  # the longest exchange has this many operations in a row


class ScriptedGovernor:
    """A governor whose decision the test sets."""

    def __init__(self) -> None:
        self.decision = Decision(Level(), "the test's level")

    def begin_step(self, bucket: Bucket) -> None:
        """The test sets the decision."""

    def add_bucket(self, bucket: Bucket) -> None:
        """The test sets the decision."""

    def finish(self) -> None:
        """Nothing to report."""

    def close(self) -> None:
        """Nothing to close."""


class ObservedFeedback(ErrorFeedback):
    """Records which owners' residuals the exchanges of the last step asked for."""

    def __init__(self, rank: int, world_size: int, kept: ResidualType = "float32") -> None:
        super().__init__(rank, world_size, kept)
        self.asked: dict[int, set[Place]] = {}

    def owner(self, bucket: Bucket, place: Place, zeros: MakeZeros = host_zeros) -> Tensor:
        self.asked.setdefault(bucket.index, set()).add(place)
        return super().owner(bucket, place, zeros)

    def written(self) -> dict[str, Tensor]:
        """By parameter, the sum of the magnitudes of what waits, in units of this rank's gradient."""
        found = {name: value.double().abs() for name, value in self._residual.state().items()}
        for index, owned in self._owned.items():
            for part in self._residual._layouts[index].slices:
                for (start, numel), left in owned.items():
                    low, high = max(start, part.offset), min(start + numel, part.offset + part.numel)
                    if low < high:
                        inside = left[low - start : high - start].double().abs()
                        found[part.name][low - part.offset : high - part.offset] += self._world_size * inside
        return found

    def reachable(self) -> dict[str, Tensor]:
        """By parameter, in units of this rank's gradient: its residual, and what it read last as an owner."""
        found = {name: value.double() for name, value in self._residual.state().items()}
        for index, bucket in self._residual._layouts.items():
            whole = torch.zeros(bucket.numel, dtype=torch.float64)
            for start, numel in self.asked.get(index, set()):
                left = self._owned.get(index, {}).get((start, numel))
                if left is not None:
                    whole[start : start + numel] += self._world_size * left.double()
            for part in bucket.slices:
                found[part.name] += whole[part.offset : part.offset + part.numel]
        return found


class ConstantWeights:
    """Weights for pruning: the same on all ranks."""

    def __init__(self, numel: int) -> None:
        self._values = torch.randn(numel, generator=torch.Generator().manual_seed(99), dtype=torch.float32)

    def read(self, start: int, numel: int) -> Tensor:
        return self._values[start : start + numel].clone()

    def zero(self, places: Tensor) -> None:
        self._values[places] = 0.0


def buckets(shapes: Shapes, step: int) -> list[Bucket]:
    found = []
    for index, parts in enumerate(shapes):
        offset, slices = 0, []
        for name, shape in parts:
            numel = int(torch.Size(shape).numel())
            slices.append(ParameterSlice(name, offset, shape, numel))
            offset += numel
        found.append(Bucket(index, step, offset, 4, tuple(slices), index == len(shapes) - 1))
    return found


class Sessions:
    """`step(level, gradients)` is one backward on all ranks: gradients[rank][bucket] in, the restored means out."""

    def __init__(  # noqa: PLR0913 - each has a default
        self,
        world_size: int,
        shapes: Shapes,
        compress: CompressConfig | None = None,
        *,
        own_wire: bool = False,
        loss: Loss | None = None,
        late: bool = False,
        release: Callable[[], None] = lambda: None,
        devices: Sequence[FindDevice] = (),
        slot: int = SLOT,
    ) -> None:
        self.world_size, self.shapes = world_size, shapes
        self.governors = [ScriptedGovernor() for _ in range(world_size)]
        kept: ResidualType = compress.residual_type if compress is not None else "float32"
        self.feedbacks = [ObservedFeedback(rank, world_size, kept) for rank in range(world_size)]
        self.codecs = [CodecCache(compress is not None and compress.prune == "zero") for _ in range(world_size)]
        self.events: list[Event] = []
        self.timings: list[tuple[float, float, int]] = []
        self.sessions: list[Session] = []
        self.contexts: list[PathContext] = []
        self._find_device = devices or [find_device] * world_size
        self._tolerance = 1.0 if loss is None else 0.5
        lanes = [Loopback(world_size, loss=loss, late=late) for _ in range(LANES)]
        plain = Loopback(world_size)
        for rank in range(world_size):
            context = self._context(rank, compress or CompressConfig(), lanes, own_wire)
            self.contexts.append(context)
            governor, host = self.governors[rank], HostPath(context, slot=slot)
            compressed = CompressedPath(context)
            parts = SessionParts(
                governor=governor,
                plain=PlainPath(context, self.all_reduce(plain, rank), lambda *timing: self.timings.append(timing)),
                compressed=compressed,
                tree=TreePath(context),
                host=host,
                device=DevicePath(context, compressed, slot) if context.compress.encode == "gpu" else None,
                scaling=context.scaling,
                reporter=context.reporter,
                timer=context.timer,
                closers=(
                    host.close_downloads,
                    context.transports.close_lanes,
                    host.close_uploads,
                    context.watcher.close,
                    context.feedback.settle_last,
                    governor.close,
                    release,
                ),
            )
            self.sessions.append(Session(parts))

    def _context(self, rank: int, compress: CompressConfig, lanes: Sequence[Loopback], own_wire: bool) -> PathContext:
        feedback, codecs = self.feedbacks[rank], self.codecs[rank]
        pipeline = Pipeline([lane.lane(rank) for lane in lanes], lambda timing: None)
        return PathContext(
            rank=rank,
            world_size=self.world_size,
            compress=compress,
            feedback=feedback,
            codecs=codecs,
            scaling=LossScaling(feedback, codecs),
            transports=transport_of(pipeline, self.world_size, own_wire=own_wire, tolerance=self._tolerance),
            reporter=EventReporter(self, MonotonicClock()),
            timer=StepTimer(),
            watcher=EventWatcher(MonotonicClock()),
            find_device=self._find_device[rank],
        )

    def all_reduce(self, world: Loopback, rank: int) -> AllReduceMean:
        """What `off` does on the process group."""
        return _all_reduce(world, rank)

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def step(self, level: str, gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        results = [[gradient.clone() for gradient in own] for own in gradients]
        self.each(lambda rank: self._backward(rank, Level.parse(level), results[rank]))
        return results

    def each(self, work: Callable[[int], None]) -> None:
        """Run every rank on its own thread; the first error is raised."""
        errors: list[BaseException] = []

        def run(rank: int) -> None:
            try:
                work(rank)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(self.world_size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        if errors:
            raise errors[0]
        assert not any(thread.is_alive() for thread in threads), "a rank did not end within 60 s"

    def residuals(self) -> dict[str, Tensor]:
        """Over all ranks, what the exchanges of the last step could have sent but did not."""
        total: dict[str, Tensor] = {}
        for feedback in self.feedbacks:
            for name, value in feedback.reachable().items():
                total[name] = total[name] + value if name in total else value
        return total

    def close(self) -> None:
        for session in self.sessions:
            session.close()

    def _backward(self, rank: int, level: Level, gradients: list[Tensor]) -> None:
        session = self.sessions[rank]
        self.governors[rank].decision = Decision(level, "the test's level")
        self.feedbacks[rank].asked.clear()
        for bucket, gradient in zip(buckets(self.shapes, session.step), gradients, strict=True):
            weights: Weights = ConstantWeights(bucket.numel)
            if bucket.is_last:
                session.step += 1
            session.synchronise(bucket, gradient, weights)
        session.settle()


def _all_reduce(world: Loopback, rank: int) -> AllReduceMean:
    lane = world.lane(rank)

    def all_reduce(buffer: Tensor) -> Future[list[Tensor]]:
        done: Future[list[Tensor]] = Future()
        lane.start(AllReduce(buffer.mul_(1.0 / world.world_size))).wait()
        done.set_result([buffer])
        return done

    return all_reduce
