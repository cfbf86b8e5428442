"""Torch's communication hooks in virtual time: the peers that a user of plain DDP can have with one line.

    torch-fp16         fp16_compress_hook: divided by the number of ranks first, cast to half, summed by a ring in half
    torch-powersgd:R   powerSGD_hook at rank R, its defaults except the step at which it starts

In: every rank's gradient of a bucket. Out: the mean that the hook would restore on every rank, the bytes of each
all-reduce, one after the other, and what the hook computes, in nanoseconds per element: measured and charged as the
ladder's work of fixed levels is (decide/ladder.py).

PowerSGD (Vogels et al., NeurIPS 2019), with M a rank's gradient and error as a matrix of rows and columns:

    1. all-reduce what is not worth factoring: vectors, and matrices that factors would make less than half as small
    2. P = M Q, summed over ranks, made orthonormal
    3. Q = M^T P, averaged over ranks, kept for the next step (warm start)
    4. the mean is P Q^T; a rank's error is its M less that mean
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Protocol

import torch
from torch import Tensor

from gradwire.errors import ConfigError
from gradwire.level import Level
from gradwire.simulate.lockstep import Movement
from gradwire.simulate.tasks import TrainingTask
from gradwire.simulate.workers import BucketTraffic, Workers
from gradwire.types import Bucket, ParameterSlice, all_reduce_bytes

TORCH_HOOKS: Final = ("torch-fp16", "torch-powersgd:1", "torch-powersgd:4")
# Steps of plain all-reduce before PowerSGD starts. torch's default of 1000 is longer than these runs; a user who wants
# its speed starts it after a few steps, in which the gradient's first, largest changes pass.
POWERSGD_START: Final = 10
# Nanoseconds of processor time per element, by `benchmarks/hook.py --ranks 2`: the ladder's fp16 and lowrank:4, which
# send about as much, plus the difference to them in the CPU column. Four runs: fp16 3.2 to 3.3, PowerSGD 5.9 to 6.5 at
# rank 1 and 8.0 to 8.6 at rank 4.
FP16_WORK: Final = 3.3
POWERSGD_WORK: Final = (5.3, 0.73)  # of any rank, and of each
# torch's min_compression_rate: how much smaller factors must be for a matrix to be factored.
WORTH: Final = 2


class TorchHook(Protocol):
    """`reduce` replaces rank 0's gradient by the restored mean; it returns the bytes of each all-reduce, in order.

    `one_bucket`: on gloo, PowerSGD's collectives mismatch with more than one bucket, so its users have one.
    """

    one_bucket: bool

    def reduce(self, bucket: Bucket, gradients: list[Tensor]) -> tuple[int, ...]: ...


class Fp16Hook:
    one_bucket = False

    def reduce(self, bucket: Bucket, gradients: list[Tensor]) -> tuple[int, ...]:
        world = len(gradients)
        halves = [gradient.half().div_(world) for gradient in gradients]
        gradients[0].copy_(ring_sum(halves))
        return (2 * bucket.numel,)


def ring_sum(tensors: list[Tensor]) -> Tensor:
    """A ring's sum: each of W parts starts at another rank, and every partial sum is rounded to the tensors' type."""
    world = len(tensors)
    result = torch.empty_like(tensors[0])
    parts = [list(torch.tensor_split(tensor, world)) for tensor in (*tensors, result)]
    for part in range(world):
        total = parts[part][part].clone()
        for turn in range(1, world):
            total += parts[(part + turn) % world][part]
        parts[world][part].copy_(total)
    return result


@dataclass(slots=True)
class PowerSgdHook:
    """`factors` are the Q of each factored matrix, by its offset in the bucket; `errors` one vector for each rank."""

    rank: int
    start: int = POWERSGD_START
    one_bucket: bool = True
    steps: int = 0
    factors: dict[int, Tensor] = field(default_factory=dict)
    errors: list[Tensor] = field(default_factory=list)

    def reduce(self, bucket: Bucket, gradients: list[Tensor]) -> tuple[int, ...]:
        self.steps += 1
        if self.steps <= self.start:
            gradients[0].copy_(torch.stack(gradients).mean(0))
            return (bucket.nbytes,)
        for gradient, error in zip(gradients, self.errors, strict=False):
            gradient.add_(error)
        mean = torch.stack(gradients).mean(0)  # 1
        factored = [one for one in bucket.slices if worth_factoring(one.shape, self.rank)]
        sent = [self._factor(one, gradients, mean) for one in factored]
        self.errors = [gradient - mean for gradient in gradients]  # 4
        gradients[0].copy_(mean)
        plain = bucket.numel - sum(one.numel for one in factored)
        return 4 * plain, 4 * sum(p for p, _ in sent), 4 * sum(q for _, q in sent)

    def _factor(self, one: ParameterSlice, gradients: list[Tensor], mean: Tensor) -> tuple[int, int]:
        """Replace a matrix of the mean by its low-rank form; the elements of P and Q."""
        place = slice(one.offset, one.offset + one.numel)
        matrices = [gradient[place].view(one.shape[0], -1) for gradient in gradients]
        known = self.factors.get(one.offset)
        q = _random(matrices[0].shape[1], self.rank, one.offset) if known is None else known
        p, _ = torch.linalg.qr(sum((matrix @ q for matrix in matrices[1:]), matrices[0] @ q))  # 2
        q = torch.stack([matrix.T @ p for matrix in matrices]).mean(0)  # 3
        self.factors[one.offset] = q
        mean[place] = (p @ q.T).view(-1)
        return p.numel(), q.numel()


def worth_factoring(shape: tuple[int, ...], rank: int) -> bool:
    if len(shape) < 2:
        return False
    rows, columns = shape[0], torch.Size(shape[1:]).numel()
    return (rows + columns) * rank * WORTH < rows * columns


def _random(rows: int, columns: int, seed: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def hook_of(name: str) -> TorchHook:
    """A new hook; ConfigError names the choices."""
    kind, _, rank = name.partition(":")
    if name == "torch-fp16":
        return Fp16Hook()
    if kind == "torch-powersgd" and rank.isdigit() and int(rank) > 0:
        return PowerSgdHook(int(rank))
    raise ConfigError(f"peers: {name!r} is not torch-fp16 or torch-powersgd:RANK")


def work_of(name: str) -> tuple[float, int]:
    """Nanoseconds that the hook computes per element, and the steps before the first that it does."""
    hook = hook_of(name)
    if isinstance(hook, PowerSgdHook):
        base, each = POWERSGD_WORK
        return base + each * hook.rank, hook.start
    return FP16_WORK, 0


class HookWorkers(Workers):
    """Workers whose gradients are reduced by one of torch's hooks, whatever the level."""

    def __init__(self, task: TrainingTask, world_size: int, hook: TorchHook, seed: int) -> None:
        super().__init__(task, world_size, seed=seed)
        self._hook = hook
        if hook.one_bucket:
            self._slots, self.buckets = [[one for slots in self._slots for one in slots]], (joined(self.buckets),)

    def _synchronise(self, bucket: Bucket, gradients: list[Tensor], level: Level) -> BucketTraffic:
        sizes = self._hook.reduce(bucket, gradients)
        rounds = 2 * (self.world_size - 1)
        moved = [Movement("ring", all_reduce_bytes(size, self.world_size) // rounds) for size in sizes]
        return BucketTraffic(bucket, (tuple(moved),))


def joined(buckets: tuple[Bucket, ...]) -> Bucket:
    """One bucket of all of them, in their order."""
    starts = [0]
    for one in buckets:
        starts.append(starts[-1] + one.numel)
    slices = tuple(
        ParameterSlice(part.name, start + part.offset, part.shape, part.numel)
        for (start, _), one in zip(pairwise(starts), buckets, strict=True)
        for part in one.slices
    )
    return Bucket(0, 0, starts[-1], buckets[0].itemsize, slices, True)
