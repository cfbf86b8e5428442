"""Workers: the data-parallel workers of one training job in one process. Gradients, codecs and exchanges are real.

All replicas of synchronous training are equal, so there is one model. At each step every worker's gradient is computed
in turn, the shipped exchange replaces them by the mean that every rank would restore, and the optimizer takes one step.
Residuals are kept by rank, as in a real job.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gradwire.compress.base import ChunkSpan
from gradwire.compress.codec_cache import CodecCache
from gradwire.compress.energy import energies
from gradwire.compress.error_feedback import ErrorFeedback
from gradwire.compress.gradient_sample import GradientSampler
from gradwire.exchange.buffer_pool import BufferLease, BufferPool
from gradwire.exchange.chunk import Chunk
from gradwire.exchange.chunk_layout import ChunkLayout, chunk_layout
from gradwire.exchange.lowrank import FactorGroup, ends_group
from gradwire.exchange.select import exchange
from gradwire.level import Level
from gradwire.simulate.lockstep import Movement, run_lockstep
from gradwire.simulate.tasks import TrainingTask
from gradwire.types import Bucket, ParameterSlice, all_reduce_bytes

MEGABYTE = 2**20
CPU = torch.device("cpu")
# Selections whose exchanges do nothing after their last operation but decode the mean, the same bytes on every rank.
# Only rank 0's is used: leaving out the others saves a third of the decoding.
RESTORED_ONCE: Final = frozenset({"all", "topk", "exactk"})


@dataclass(frozen=True, slots=True)
class BucketTraffic:
    """What one bucket's exchange moved: a list of operations for each chunk. `held`: it is part of a later bucket's."""

    bucket: Bucket
    chunks: tuple[tuple[Movement, ...], ...]
    held: bool = False


@dataclass(frozen=True, slots=True)
class TrainedStep:
    """The mean training loss of the workers' batches, what the network carried, rank 0's sampled gradient, and the
    energy of its residual relative to the gradient's."""

    loss: float
    traffic: tuple[BucketTraffic, ...]
    sample: NDArray[np.float32] | None
    residual: float = 0.0


class Workers:
    """`bucket_mb` is DDP's bucket_cap_mb (its first bucket has one megabyte), `chunk_mb` gradwire's compress.chunk."""

    def __init__(
        self, task: TrainingTask, world_size: int, *, seed: int = 1, bucket_mb: float = 25.0, chunk_mb: float = 4.0
    ) -> None:
        torch.manual_seed(seed)
        self.task, self.world_size, self.step = task, world_size, 0
        self.model: nn.Module = task.module()
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = task.optimizer(self.parameters)
        self._schedule = task.schedule(self.optimizer)
        self._batches = [task.batches(seed, rank, world_size) for rank in range(world_size)]
        self._chunk_mb = chunk_mb
        self._slots, self.buckets = _buckets(self.model, bucket_mb)
        self.feedback = [ErrorFeedback(rank, world_size) for rank in range(world_size)]
        self._codecs = [CodecCache() for _ in range(world_size)]
        self._pool = BufferPool()
        self._sampler = GradientSampler(sum(parameter.numel() for parameter in self.parameters))
        self._layouts: dict[int, ChunkLayout] = {}
        self._groups: list[FactorGroup] = []
        self._energies = (0.0, 0.0)

    def train(self, level: Level) -> TrainedStep:
        """One step of every worker at this level."""
        self.step += 1
        self._energies = (0.0, 0.0)
        losses, local = [], []
        for batches in self._batches:
            for own in self.parameters:
                own.grad = None
            loss = self.task.loss(self.model, *next(batches))
            loss.backward()
            losses.append(float(loss.detach()))
            local.append(self._flat_gradients())
        for gradient in local[0]:
            self._sampler.add(gradient)
        traffic = tuple(
            self._synchronise(bucket, [gradients[index] for gradients in local], level)
            for index, bucket in enumerate(self._current_buckets())
        )
        for slots, mean in zip(self._slots, local[0], strict=True):
            offset = 0
            for parameter in slots:
                parameter.grad = mean[offset : offset + parameter.numel()].view_as(parameter)
                offset += parameter.numel()
        self.task.before_step(self.parameters)
        self.optimizer.step()
        self._schedule.step()
        waits, fresh = self._energies
        residual = waits / fresh if fresh > 0 else 0.0
        return TrainedStep(sum(losses) / len(losses), traffic, self._sampler.take_step(), residual)

    @property
    def learning_rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def held_out_loss(self) -> float:
        """The loss on data that no worker trains on."""
        self.model.eval()
        with torch.no_grad():
            loss = float(self.task.loss(self.model, *self.task.held_out))
        self.model.train()
        return loss

    def _current_buckets(self) -> tuple[Bucket, ...]:
        return tuple(
            Bucket(one.index, self.step, one.numel, one.itemsize, one.slices, one.is_last) for one in self.buckets
        )

    def _flat_gradients(self) -> list[Tensor]:
        flat = []
        for slots in self._slots:
            parts = [torch.zeros_like(p).view(-1) if p.grad is None else p.grad.reshape(-1) for p in slots]
            flat.append(torch.cat(parts).float())
        return flat

    def _synchronise(self, bucket: Bucket, gradients: list[Tensor], level: Level) -> BucketTraffic:
        """Replace rank 0's gradient by the mean; what the other ranks' are afterwards is not defined."""
        world = self.world_size
        if world == 1:
            return BucketTraffic(bucket, ())
        if level.off:
            for feedback, gradient in zip(self.feedback, gradients, strict=True):
                if feedback.pending(bucket):
                    feedback.flush(bucket, gradient)
                self._layouts.pop(bucket.index, None)
            gradients[0].copy_(torch.stack(gradients).mean(0))
            each = all_reduce_bytes(bucket.nbytes, world) // (2 * (world - 1))
            return BucketTraffic(bucket, ((Movement("ring", each),),))
        residuals = [feedback.worker(bucket, gradients[0].device) for feedback in self.feedback]
        waits, fresh = energies(bucket.step, residuals[0], gradients[0])
        self._energies = self._energies[0] + waits, self._energies[1] + fresh
        layout = self._layout(bucket, level)
        moved = []
        for start, end in layout.chunks(bucket.numel):
            chunks = [self._chunk(bucket, rank, gradients, residuals, (start, end)) for rank in range(world)]
            if level.select == "lowrank":
                return self._add_to_groups(bucket, chunks, level)
            exchanges = [
                exchange(chunk, codecs.codec(level)) for chunk, codecs in zip(chunks, self._codecs, strict=True)
            ]
            moved.append(tuple(run_lockstep(exchanges, one_restores=level.select in RESTORED_ONCE)))
            for chunk in chunks:
                chunk.lease.end()
        return BucketTraffic(bucket, tuple(moved))

    def _add_to_groups(self, bucket: Bucket, chunks: list[Chunk], level: Level) -> BucketTraffic:
        """Add a bucket to every rank's group of low-rank factors; exchange them if they end here."""
        if not self._groups:
            factors = [codecs.lowrank(level) for codecs in self._codecs]
            self._groups = [FactorGroup(own, self.world_size, BufferLease(self._pool, CPU)) for own in factors]
        layout = self._codecs[0].lowrank(level).layout(bucket.slices)
        run_lockstep([group.add(chunk, layout) for group, chunk in zip(self._groups, chunks, strict=True)])
        if not ends_group(bucket, self._groups[0].nbytes):
            return BucketTraffic(bucket, (), held=True)
        groups, self._groups = self._groups, []
        return BucketTraffic(bucket, (tuple(run_lockstep([group.exchange() for group in groups])),))

    def _chunk(
        self, bucket: Bucket, rank: int, gradients: list[Tensor], residuals: list[Tensor], place: tuple[int, int]
    ) -> Chunk:
        start, end = place
        device = gradients[rank].device
        return Chunk(
            ChunkSpan(bucket.step, bucket.index, start, end - start),
            gradients[rank][start:end],
            residuals[rank][start:end],
            lambda at, numel: self.feedback[rank].owner(bucket, (at, numel)),
            rank,
            self.world_size,
            lambda at, encoded: None,
            BufferLease(self._pool, device),
        )

    def _layout(self, bucket: Bucket, level: Level) -> ChunkLayout:
        codec = None if level.select == "lowrank" else self._codecs[0].codec(level)
        layout = chunk_layout(bucket, codec, self.world_size, self._chunk_mb)
        if self._layouts.get(bucket.index) != layout:
            for feedback, codecs in zip(self.feedback, self._codecs, strict=True):
                feedback.fold(bucket.index)
                codecs.forget(bucket.index)
            self._pool.clear()
            self._layouts[bucket.index] = layout
        return layout


def _buckets(model: nn.Module, bucket_mb: float) -> tuple[list[list[Tensor]], tuple[Bucket, ...]]:
    """Parameters in buckets as DDP divides them: last parameters first, a small first bucket."""
    groups: list[list[tuple[str, Tensor]]] = [[]]
    size, cap = 0, 1 * MEGABYTE
    for name, parameter in reversed([(n, p) for n, p in model.named_parameters() if p.requires_grad]):
        groups[-1].append((name, parameter))
        size += 4 * parameter.numel()
        if size >= cap:
            groups.append([])
            size, cap = 0, int(bucket_mb * MEGABYTE)
    groups = [group for group in groups if group]
    buckets = []
    for index, group in enumerate(groups):
        slices, offset = [], 0
        for name, one in group:
            slices.append(ParameterSlice(name, offset, tuple(one.shape), one.numel()))
            offset += one.numel()
        buckets.append(Bucket(index, 0, offset, 4, tuple(slices), index == len(groups) - 1))
    return [[parameter for _, parameter in group] for group in groups], tuple(buckets)
