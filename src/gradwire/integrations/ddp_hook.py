"""DDP communication hook: turns GradBuckets into Buckets, passes them to a session, counts steps.

In: DDP's buckets, in their order, on the training thread. Out: a future with the mean for each bucket. With the last
bucket of a backward, a callback is queued that waits for all of them, so that an error of a background thread reaches
the training loop with its own type. A copy of an attached model (deepcopy, pickle, torch.save) has a `DetachedHook`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from gradwire.device.cuda import completed_future
from gradwire.errors import ConfigError
from gradwire.fork import void_in_child
from gradwire.integrations.bucket_layout import as_parameter, in_bucket_order
from gradwire.integrations.unused_parameters import UnusedParameters
from gradwire.runtime.session import Session
from gradwire.sites.placeholder_group import PlaceholderGroup
from gradwire.sites.replica_state import BucketLayout
from gradwire.types import Bucket, ParameterSlice


class BucketWeights:
    """The parameters under a bucket, in the bucket's order."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters

    def read(self, start: int, numel: int) -> Tensor:
        flat = torch.cat([in_bucket_order(parameter.detach(), parameter).float() for parameter in self._parameters])
        return flat[start : start + numel]

    def zero(self, places: Tensor) -> None:
        offset = 0
        for parameter in self._parameters:
            size = parameter.numel()
            pruned = torch.zeros(size, dtype=torch.bool, device=parameter.device)
            pruned[places[(places >= offset) & (places < offset + size)] - offset] = True
            parameter.detach().masked_fill_(as_parameter(pruned, parameter), 0.0)
            offset += size


class DdpHook:
    """Passes one model's buckets to its session."""

    def __init__(self, model: DistributedDataParallel, session: Session) -> None:
        self._names = {id(parameter): name for name, parameter in model.module.named_parameters()}
        self._session = session
        self._slices: dict[tuple[int, ...], tuple[ParameterSlice, ...]] = {}
        self.layout = BucketLayout()
        # DDP changes its bucket layout after the first backward. A rejoining rank runs its first backward locally, so
        # that it has the other ranks' layout when it takes part.
        self._first_is_local = isinstance(model.process_group, PlaceholderGroup)
        # DDP reduces a static graph's first backward at its end, and waits for that before any callback runs.
        self._all_at_end = bool(model.static_graph)
        self._unused = UnusedParameters(session.scaling) if model.find_unused_parameters else None
        self._step_begun = -1
        self._forked = False
        void_in_child(self, DdpHook._in_child)

    def __reduce__(self) -> tuple[type[DetachedHook], tuple[()]]:
        """A session has threads and sockets and cannot be copied; a copy of the model has no session."""
        return DetachedHook, ()

    def _in_child(self) -> None:
        self._forked = True

    def __call__(self, bucket: GradBucket) -> Future[Tensor]:
        self.check_process()
        if self._first_is_local:
            self._first_is_local = not bucket.is_last()
            return unchanged(bucket)
        parameters, buffer = bucket.parameters(), bucket.buffer()
        described = self.describe(bucket, parameters, buffer)
        if described.step != self._step_begun:
            self._step_begun = described.step
            self._session.scaling.prepare(described.step, self._outside_backward())
        if self._unused is not None and described.numel:
            self._unused.add(described, buffer, parameters)
        if described.is_last:
            self._session.step += 1
        future = self._session.synchronise(described, buffer, BucketWeights(parameters))
        if described.is_last:
            self._settle_after_backward()
        return future

    def check_process(self) -> None:
        """ConfigError in a forked child of the process that attached."""
        if self._forked:
            raise ConfigError(
                "attach: this process was forked from the one that attached the model and has no connections; "
                "train in that process, or start processes by spawn and attach in each"
            )

    def describe(self, bucket: GradBucket, parameters: Sequence[Tensor], buffer: Tensor) -> Bucket:
        """A sparse gradient has no elements that a level could compress; DDP gives it a bucket of its own."""
        slices = self._slices_of(parameters)
        self.layout.buckets[bucket.index()] = tuple(part.name for part in slices)
        sparse = buffer.is_sparse
        return Bucket(
            index=bucket.index(),
            step=self._session.step,
            numel=0 if sparse else buffer.numel(),
            itemsize=buffer.element_size(),
            slices=() if sparse else slices,
            is_last=bucket.is_last(),
        )

    def _settle_after_backward(self) -> None:
        """Queue the wait for all buckets, at the last bucket of the backward.

        DDP passes its buckets in order, and queues its own wait after the hook of the last one. Reentrant checkpointing
        runs backwards inside backward, whose callbacks run when those end: a callback that is queued earlier would wait
        in the middle of backward.
        """
        if self._outside_backward() or self._all_at_end:
            self._all_at_end = False
            self._session.settle()
            if self._unused is not None:
                self._unused.clear()
        else:
            # Runs on the training thread before DDP's own wait: errors are raised there with their own type.
            torch.autograd.Variable._execution_engine.queue_callback(self._settle)

    def _outside_backward(self) -> bool:
        """A rank that ran out of data before the others (`model.join()`) sends zeros and runs no backward."""
        return torch._C._current_graph_task_id() == -1 and not self._all_at_end

    def _settle(self) -> None:
        self._session.settle()
        if self._unused is not None:
            self._unused.save_versions()
            # Runs after DDP's own callback, which writes the gradients.
            torch.autograd.Variable._execution_engine.queue_callback(self._unused.return_means)

    def _slices_of(self, parameters: Sequence[Tensor]) -> tuple[ParameterSlice, ...]:
        key = tuple(map(id, parameters))
        known = self._slices.get(key)
        if known is None:
            offset, slices = 0, []
            for parameter in parameters:
                name, numel = self._names[id(parameter)], parameter.numel()
                slices.append(ParameterSlice(name, offset, tuple(parameter.shape), numel))
                offset += numel
            known = self._slices[key] = tuple(slices)
        return known


class DetachedHook:
    """The hook of a copy of an attached model: does what plain DDP does. DDP builds copies without a communication hook
    and only remembers that there was one; compiled autograd calls it all the same."""

    def __call__(self, bucket: GradBucket | tuple[Tensor, Tensor]) -> Future[Tensor] | None:
        if isinstance(bucket, tuple):  # compiled autograd passes (gradient, parameter) and reads the gradient
            gradient = bucket[0].div_(dist.get_world_size())
            dist.all_reduce(gradient)
            return None
        buffer = bucket.buffer().div_(dist.get_world_size())
        future = dist.all_reduce(buffer, async_op=True).get_future()
        return future.then(lambda done: done.value()[0])  # type: ignore[no-any-return]


def unchanged(bucket: GradBucket) -> Future[Tensor]:
    """The bucket as it is: this rank's own gradient."""
    return completed_future(bucket.buffer())


def call(state: Any, bucket: GradBucket) -> Future[Tensor]:
    """The function that is registered with DDP; `state` is a DdpHook, or a DetachedHook in copies of the model."""
    return state(bucket)  # type: ignore[no-any-return]


# DDP checks these annotations by identity, so they must be types, not the strings that `annotations` makes of them.
call.__annotations__ = {"state": Any, "bucket": GradBucket, "return": Future[Tensor]}


def sparse_module(module: nn.Module) -> str | None:
    """The first module with sparse gradients, by the test that DDP uses; None where there is none."""
    kinds = (nn.Embedding, nn.EmbeddingBag)
    return next(
        (name or "the model" for name, part in module.named_modules() if isinstance(part, kinds) and part.sparse), None
    )


def register(model: DistributedDataParallel, hook: Callable[[GradBucket], Future[Tensor]]) -> None:
    """Register the hook with DDP. ConfigError where the model has one; a DetachedHook does not count."""
    model._comm_hooks[:] = [pair for pair in model._comm_hooks if not isinstance(pair[1], DetachedHook)]
    try:
        model.register_comm_hook(hook, call)
    except RuntimeError as error:
        raise ConfigError(
            f"attach: this model already has a communication hook ({error}), and DDP takes one; leave out the other "
            "register_comm_hook"
        ) from error
