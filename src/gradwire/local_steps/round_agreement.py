"""Round agreement: how ranks that step at different speeds end a round together, over one lane of their own.

    announce   this rank's part of the round is over. Nobody waits
    all_here   whether every rank has announced; waits for that for so many seconds at most. A rank that does not wait
               any longer makes further steps, and asks again after each of them
    agree      when all have announced: every rank sends what it did, and receives what all did. The weights of the
               mean follow from that, so they are the same numbers on all ranks

All ranks announce and agree in the same order, whatever else their training threads send, because nothing else uses the
lane. A rank that never comes is a LinkError on the others when the lane's deadline has passed.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.errors import ConfigError, LinkError
from gradwire.runtime.pipeline import Pipeline
from gradwire.transport.lanes.base import AllGather, Op

FINISHING, PENDING = 1, 2


@dataclass(frozen=True, slots=True)
class RankProgress:
    """What a rank did since it last sent each fragment: steps that its optimizer made, and the samples in them where
    the user counts samples. `finishing`: it makes no steps until all ranks are finishing. `pending`: it has something
    that the others do not have."""

    steps: tuple[int, ...]
    samples: tuple[int, ...]
    finishing: bool = False
    pending: bool = True

    def pack(self) -> Tensor:
        flags = FINISHING * self.finishing + PENDING * self.pending
        return torch.tensor([flags, *self.steps, *self.samples], dtype=torch.int64)

    @classmethod
    def unpack(cls, row: Sequence[int]) -> RankProgress:
        flags, middle = row[0], 1 + len(row) // 2
        return cls(tuple(row[1:middle]), tuple(row[middle:]), bool(flags & FINISHING), bool(flags & PENDING))


def shares(everyone: Sequence[RankProgress], fragment: int) -> list[float]:
    """The part of each rank in the mean: its samples, or its steps, divided by those of all. Equal parts where no rank
    made a step; ConfigError where some ranks count samples and others do not."""
    steps, samples = [one.steps[fragment] for one in everyone], [one.samples[fragment] for one in everyone]
    silent = [rank for rank, count in enumerate(samples) if steps[rank] and not count]
    if any(samples) and silent:
        raise ConfigError(
            f"count_samples: rank {silent[0]} counted no samples in this round, and others did: either every rank "
            "calls handle.count_samples before each step of its optimizer, or none does"
        )
    counts = samples if any(samples) else steps
    total = sum(counts)
    return [count / total for count in counts] if total else [1.0 / len(everyone)] * len(everyone)


class RoundAgreement:
    """One rank's side. `pipeline` has one lane and is closed with this; None for a job of one rank."""

    def __init__(self, pipeline: Pipeline | None, rank: int, world_size: int) -> None:
        self._pipeline, self.rank, self._world_size = pipeline, rank, world_size
        self._here = threading.Event()
        self._error: BaseException | None = None
        self.announced = False

    def announce(self) -> None:
        """Once between two calls of `agree`."""
        self.announced = True
        self._here = here = threading.Event()

        def done(error: BaseException | None) -> None:
            self._error = error
            here.set()

        if self._pipeline is None:
            here.set()
        else:
            self._pipeline.submit(self._gather(torch.zeros(1, dtype=torch.int64), []), done)

    def all_here(self, seconds: float | None) -> bool:
        """None: wait until the lane's deadline."""
        found = self._here.wait(seconds)
        if self._error is not None:
            raise self._error
        return found

    def agree(self, own: RankProgress) -> list[RankProgress]:
        """What all ranks did, by rank; every rank calls this after `all_here`."""
        self.announced = False
        if self._pipeline is None:
            return [own]
        received = list[Tensor]()
        self._pipeline.run(self._gather(own.pack(), received))
        return [RankProgress.unpack(row) for row in received[0].tolist()]

    def close(self) -> None:
        """Does not wait for ranks that have not announced: their announcement is not needed any more."""
        if self._pipeline is not None:
            with contextlib.suppress(LinkError):
                self._pipeline.close(1.0)

    def _gather(self, row: Tensor, received: list[Tensor]) -> Iterator[Op]:
        rows = row.new_empty((self._world_size, row.numel()))
        yield AllGather(row, rows)
        received.append(rows)
