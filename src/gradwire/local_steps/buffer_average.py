"""Buffer average: a model's buffers (BatchNorm's running statistics) at the end of a round.

Floating-point buffers become their mean over all ranks; other buffers (counters) become rank 0's, as DDP broadcasts
them. Between two ends of rounds every rank has its own. The exchange begins before that of the weights and is waited
for after it, so it adds no round trip. A copy of the result belongs to the global weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.errors import LinkError
from gradwire.transport.lanes.collectives import explain
from gradwire.types import all_reduce_bytes


class BufferAverage:
    """`begin`, then `finish`, on all ranks at the same points."""

    def __init__(self, buffers: Mapping[str, Tensor], group: dist.ProcessGroup, timeout: float) -> None:
        self._buffers = dict(buffers)
        self.group = group
        self._timeout = timedelta(seconds=timeout)
        self._averaged = [one for one in buffers.values() if one.is_floating_point()]
        self._copied = [one for one in buffers.values() if not one.is_floating_point()]
        self._saved = self._copies()
        self._flat: Tensor | None = None
        self._works: list[dist.Work] = []

    @property
    def wire_bytes(self) -> int:
        """Bytes that this rank sends in a round for the mean."""
        return all_reduce_bytes(sum(4 * one.numel() for one in self._averaged), self.group.size())

    def begin(self) -> None:
        if self.group.size() == 1:
            return
        if self._averaged:
            device = self._averaged[0].device
            self._flat = torch.cat([one.detach().to(device, torch.float32).flatten() for one in self._averaged])
            self._flat.mul_(1.0 / self.group.size())
            self._works.append(dist.all_reduce(self._flat, group=self.group, async_op=True))
        root = dist.get_global_rank(self.group, 0)
        self._works += [dist.broadcast(one, root, group=self.group, async_op=True) for one in self._copied]

    def finish(self) -> None:
        works, self._works = self._works, []
        try:
            for work in works:
                work.wait(self._timeout)
        except RuntimeError as error:
            raise LinkError(explain(error, "AllReduce")) from error
        if self._flat is not None:
            parts = self._flat.split([one.numel() for one in self._averaged])
            for one, part in zip(self._averaged, parts, strict=True):
                one.copy_(part.view(one.shape))
            self._flat = None
        self._saved = self._copies()

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """The model has the buffers of the last end of a round inside, and its own again afterwards."""
        own = self._copies()
        self.load(self._saved)
        try:
            yield
        finally:
            self.load(own)

    def state(self) -> dict[str, Tensor]:
        """A copy of the buffers at the last end of a round."""
        return {name: one.clone() for name, one in self._saved.items()}

    def own(self) -> dict[str, Tensor]:
        """A copy of the model's buffers as they are now."""
        return self._copies()

    def load_saved(self, state: Mapping[str, Tensor]) -> None:
        for name, value in state.items():
            self._saved[name].copy_(value)

    def load(self, state: Mapping[str, Tensor]) -> None:
        for name, one in self._buffers.items():
            one.copy_(state[name])

    def _copies(self) -> dict[str, Tensor]:
        return {name: one.detach().clone() for name, one in self._buffers.items()}
