"""Local workers: workers that may train alone for some steps and then synchronise their weights, in one process.

Every worker has a replica of its own: model, optimizer, schedule. Global weights, pseudo-gradients and the outer
optimizer are the shipped ones (local_steps/), and pseudo-gradients go through the same exchanges as gradients.

    train         one synchronous step, as in `Workers`: it trains worker 0's replica, because all are equal
    begin_local   every replica becomes a copy of worker 0's; the global weights are its weights
    train_alone   one step of every replica by its own gradient; the first one also applies the worker's own residual,
                  so that nothing which compressed gradients left out is lost
    end_round     pseudo-gradients, their mean, the outer optimizer's step; all replicas have the global weights
    end_local     ends the round uncompressed with what is in residuals; the optimizers' states become their mean
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from gradwire.config import OuterConfig
from gradwire.level import Level
from gradwire.local_steps.global_weights import GlobalWeights
from gradwire.local_steps.outer_optimizer import make_outer
from gradwire.simulate.tasks import TrainingTask
from gradwire.simulate.workers import BucketTraffic, Workers
from gradwire.types import Bucket, RoundNorms


@dataclass(frozen=True, slots=True)
class EndedRound:
    """What the network carried for a round, how the replicas differed, and worker 0's sampled pseudo-gradient."""

    traffic: tuple[BucketTraffic, ...]
    divergence: RoundNorms
    sample: NDArray[np.float32] | None


@dataclass(frozen=True, slots=True)
class Replica:
    """What one worker trains alone."""

    model: nn.Module
    optimizer: Optimizer
    schedule: LRScheduler
    weights: GlobalWeights

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [one for one in self.model.parameters() if one.requires_grad]


class LocalWorkers(Workers):
    """`steps_alone` counts the steps since the last end of a round, `rounds` those; `local`: replicas train alone."""

    def __init__(self, task: TrainingTask, world_size: int, *, seed: int = 1, outer: OuterConfig | None = None) -> None:
        super().__init__(task, world_size, seed=seed)
        self._outer_config = outer or OuterConfig()
        self._replicas: list[Replica] = []
        self._outer: Optimizer | None = None
        self.rounds = self.steps_alone = 0
        self._flushing = False

    @property
    def local(self) -> bool:
        return bool(self._replicas)

    @property
    def weight_buckets(self) -> tuple[Bucket, ...]:
        return tuple(one.bucket for one in self._replicas[0].weights.buckets)

    def begin_local(self) -> None:
        first = self._replica(self.model, self.optimizer)
        self._replicas = [first, *(self._copy() for _ in range(self.world_size - 1))]
        self._outer = make_outer(self._outer_config, None, first.weights.parameters)
        self.steps_alone, self._flushing = 0, True

    def train_alone(self) -> float:
        """One step of every replica; the mean of the losses."""
        self.step += 1
        self.steps_alone += 1
        losses = [self._step_alone(rank, one) for rank, one in enumerate(self._replicas)]
        self._flushing = False
        return sum(losses) / len(losses)

    def end_round(self, level: Level) -> EndedRound:
        """Synchronise the weights at this level."""
        own, traffic, shared = 0.0, [], 0.0
        for index, first in enumerate(self._replicas[0].weights.buckets):
            changes = [one.weights.buckets[index].measure() for one in self._replicas]
            own += sum(float(change.square().sum()) for change in changes) / self.world_size
            self._sampler.add(changes[0])
            traffic.append(self._synchronise(replace(first.bucket, step=self.rounds), changes, level))
            shared += float(first.gradient.square().sum())
        found = RoundNorms(self.steps_alone, own, shared)
        self._apply_outer()
        return EndedRound(tuple(traffic), found, self._sampler.take_step())

    def end_local(self) -> EndedRound:
        """Continue synchronously with worker 0's replica."""
        ended = self.end_round(Level())
        self._average_optimizers()
        self._replicas, self._outer = [], None
        return ended

    def held_out_loss(self) -> float:
        """That of the global weights, which all workers share."""
        with self.global_weights():
            return super().held_out_loss()

    @contextmanager
    def global_weights(self) -> Iterator[None]:
        if not self.local:
            yield
            return
        with self._replicas[0].weights.swapped_in():
            yield

    def _replica(self, model: nn.Module, optimizer: Optimizer) -> Replica:
        schedule = self._schedule if optimizer is self.optimizer else self.task.schedule(optimizer)
        named = ((name, one) for name, one in model.named_parameters() if one.requires_grad)
        return Replica(model, optimizer, schedule, GlobalWeights(named))

    def _copy(self) -> Replica:
        model = copy.deepcopy(self.model)
        optimizer = self.task.optimizer([one for one in model.parameters() if one.requires_grad])
        made = self._replica(model, optimizer)
        made.schedule.load_state_dict(self._schedule.state_dict())
        optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        return made

    def _step_alone(self, rank: int, replica: Replica) -> float:
        replica.model.zero_grad(set_to_none=True)
        loss = self.task.loss(replica.model, *next(self._batches[rank]))
        loss.backward()
        if self._flushing:
            self._apply_residual(rank, replica)
        self.task.before_step(replica.parameters)
        replica.optimizer.step()
        replica.schedule.step()
        return float(loss.detach())

    def _apply_residual(self, rank: int, replica: Replica) -> None:
        named = dict(replica.model.named_parameters())
        for bucket in self._current_buckets():
            if not self.feedback[rank].pending(bucket):
                continue
            residual = torch.zeros(bucket.numel)
            self.feedback[rank].flush(bucket, residual)
            for part in bucket.slices:
                one = named[part.name]
                left = residual[part.offset : part.offset + part.numel].view_as(one)
                one.grad = left if one.grad is None else one.grad + left

    def _apply_outer(self) -> None:
        assert self._outer is not None
        self._outer.step()
        first = self._replicas[0]
        for replica in self._replicas:
            for own, other in zip(replica.weights.buckets, first.weights.buckets, strict=True):
                own.flat.copy_(other.flat)
            replica.weights.reset_local()
        self._average([dict(one.model.named_buffers()) for one in self._replicas])
        self.rounds, self.steps_alone = self.rounds + 1, 0

    def _average_optimizers(self) -> None:
        states = [one.optimizer.state_dict()["state"] for one in self._replicas]
        self._average(
            [{f"{at}.{key}": value for at, own in state.items() for key, value in own.items()} for state in states]
        )

    @staticmethod
    def _average(named: list[dict[str, Tensor]]) -> None:
        """Floating-point tensors become their mean on every replica, others the first one's."""
        for name, value in named[0].items():
            if isinstance(value, Tensor):
                same = [one[name] for one in named]
                mean = torch.stack(same).mean(0) if value.is_floating_point() else value.clone()
                for one in same:
                    one.copy_(mean)
