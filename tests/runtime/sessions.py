"""Sessions of several ranks in one process, over loopback lanes, with a level that the test sets at every step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

from gradwire.clock import MonotonicClock
from gradwire.compress.base import Weights
from gradwire.compress.error_feedback import ErrorFeedback, Place
from gradwire.config import CompressConfig
from gradwire.events import Event
from gradwire.level import Level
from gradwire.runtime.pipeline import Pipeline
from gradwire.runtime.session import Session, SessionParts
from gradwire.sense.step_timer import StepTimer
from gradwire.transport.lanes.base import AllReduce
from gradwire.transport.lanes.loopback import Loopback
from gradwire.types import Bucket, Decision, ParameterSlice

Shapes = Sequence[Sequence[tuple[str, tuple[int, ...]]]]
LANES = 4  # the longest exchange takes so many operations in a row


class Scripted:
    """A governor that says what the test wrote down."""

    def __init__(self) -> None:
        self.level = Level()

    def decide(self, bucket: Bucket) -> Decision:
        return Decision(self.level, "the test says so")

    def finish(self) -> None:
        """Nothing is told."""

    def close(self) -> None:
        """Nothing is held."""


class Watched(ErrorFeedback):
    """Knows which owners' residuals the exchanges of the last step asked for."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__(rank, world_size)
        self.asked: dict[int, set[Place]] = {}

    def owner(self, bucket: Bucket, place: Place, device: torch.device) -> Tensor:
        self.asked.setdefault(bucket.index, set()).add(place)
        return super().owner(bucket, place, device)

    def within_reach(self) -> dict[str, Tensor]:
        """By parameter, in units of this rank's gradient: its residual, and as an owner what it read lastly."""
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


class Still:
    """Weights that pruning may look at: the same on all ranks."""

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

    def __init__(self, world_size: int, shapes: Shapes, compress: CompressConfig | None = None, **rooms: Any) -> None:
        self.world_size, self.shapes = world_size, shapes
        self.governors = [Scripted() for _ in range(world_size)]
        self.feedbacks = [Watched(rank, world_size) for rank in range(world_size)]
        self.events: list[Event] = []
        self.sessions: list[Session] = []
        lanes, plain = [Loopback(world_size) for _ in range(LANES)], Loopback(world_size)
        for rank in range(world_size):
            pipeline = Pipeline([lane.lane(rank) for lane in lanes], lambda timing: None)
            parts = SessionParts(
                self.governors[rank], self.feedbacks[rank], pipeline, _all_reduce(plain, rank), self, MonotonicClock(),
                StepTimer(), lambda started, finished, nbytes: None, **rooms,
            )  # fmt: skip
            self.sessions.append(Session(rank, world_size, compress or CompressConfig(), parts))

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def step(self, level: str, gradients: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
        results = [[gradient.clone() for gradient in own] for own in gradients]
        self.each(lambda rank: self._backward(rank, Level.parse(level), results[rank]))
        return results

    def each(self, work: Callable[[int], None]) -> None:
        """Every rank in a thread of its own; the first error is raised."""
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

    def waiting(self) -> dict[str, Tensor]:
        """Over all ranks, what the exchanges of the last step could have sent and did not."""
        total: dict[str, Tensor] = {}
        for feedback in self.feedbacks:
            for name, value in feedback.within_reach().items():
                total[name] = total[name] + value if name in total else value
        return total

    def close(self) -> None:
        for session in self.sessions:
            session.close()

    def _backward(self, rank: int, level: Level, gradients: list[Tensor]) -> None:
        session = self.sessions[rank]
        self.governors[rank].level = level
        self.feedbacks[rank].asked.clear()
        for bucket, gradient in zip(buckets(self.shapes, session.step), gradients, strict=True):
            weights: Weights = Still(bucket.numel)
            if bucket.is_last:
                session.step += 1
            session.synchronise(bucket, gradient, weights)
        session.settle()


def _all_reduce(world: Loopback, rank: int) -> Callable[[Tensor], Future[list[Tensor]]]:
    lane = world.lane(rank)

    def all_reduce(buffer: Tensor) -> Future[list[Tensor]]:
        done: Future[list[Tensor]] = Future()
        lane.start(AllReduce(buffer.mul_(1.0 / world.world_size))).wait()
        done.set_result([buffer])
        return done

    return all_reduce
