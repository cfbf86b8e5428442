"""Drives one exchange on several ranks in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gradwire.compress.base import ChunkSpan, Encoded
from gradwire.compress.lowrank import FactorLayout, LowRank
from gradwire.exchange.buffer_pool import BufferLease, BufferPool
from gradwire.exchange.chunk import Chunk
from gradwire.exchange.lowrank import FactorGroup
from gradwire.transport.lanes.base import AllToAll, Op
from gradwire.transport.lanes.loopback import Loopback, Loss

Make = Callable[[Chunk], Iterator[Op]]


class Rank:
    """One rank's residuals across steps."""

    def __init__(self, rank: int, world_size: int, numel: int, tolerance: float = 1.0) -> None:
        self.rank, self.world_size = rank, world_size
        self.tolerance = tolerance
        self.lost = 0
        self.residual = torch.zeros(numel)
        self.owned: dict[tuple[int, int], Tensor] = {}
        self.reports: list[Encoded] = []
        self.pool = BufferPool()

    def owner(self, start: int, numel: int) -> Tensor:
        return self.owned.setdefault((start, numel), torch.zeros(numel))

    def chunk(self, gradient: Tensor, step: int, weights: object = None) -> Chunk:
        span = ChunkSpan(step, 0, 0, gradient.numel(), weights)  # type: ignore[arg-type]
        report = lambda _, encoded: self.reports.append(encoded)  # noqa: E731
        lease = BufferLease(self.pool, gradient.device)
        return Chunk(
            span, gradient, self.residual, self.owner, self.rank, self.world_size, report, lease,
            tolerance=self.tolerance,
        )  # fmt: skip

    def owed(self, numel: int) -> Tensor:
        """What this rank still owes to the mean."""
        total = self.residual / self.world_size
        for (start, size), left in self.owned.items():
            total[start : start + size] += left
        return total


def alone(chunk: Chunk, factors: LowRank, layout: FactorLayout) -> Iterator[Op]:
    """The low-rank exchange of a group of one bucket."""
    group = FactorGroup(factors, chunk.world_size, chunk.lease)
    yield from group.add(chunk, layout)
    yield from group.exchange()


def run(
    ranks: list[Rank],
    gradients: list[Tensor],
    make: Callable[[Chunk], Iterator[Op]],
    step: int = 0,
    loss: Loss | None = None,
) -> list[Tensor]:
    """Run one exchange on all ranks; returns what each restored. `lost` counts bytes that did not reach a rank."""
    world = Loopback(len(ranks), loss=loss)
    results = [gradient.clone() for gradient in gradients]
    errors: list[BaseException] = []

    def work(rank: Rank) -> None:
        try:
            lane = world.lane(rank.rank)
            for op in make(rank.chunk(results[rank.rank], step)):
                lane.start(op).wait()
                if isinstance(op, AllToAll) and op.losses is not None:
                    rank.lost += sum(length for ranges in op.losses.missing.values() for _, length in ranges)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    if errors:
        raise errors[0]
    return results
