"""Buffer average: a model's buffers (BatchNorm's running statistics) at the end of a round.

Floating-point buffers become their mean over all ranks; other buffers (counters) become rank 0's, as DDP broadcasts
them. Where the result is applied some steps after it was sent, that is the mean of what was sent, and a rank adds its
own change since; other buffers are rank 0's when they were sent. Between two ends of rounds every rank has its own. The
exchange begins before that of the weights and is waited for after it, so it adds no round trip. A copy of the result
belongs to the global weights.
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
        self._averaged = [name for name, one in buffers.items() if one.is_floating_point()]
        self._copied = [name for name, one in buffers.items() if not one.is_floating_point()]
        self._saved = self._copies()
        self._sent: dict[str, Tensor] = {}
        self._arrived: dict[str, Tensor] = {}
        self._flat: Tensor | None = None
        self._works: list[dist.Work] = []

    @property
    def wire_bytes(self) -> int:
        """Bytes that this rank sends in a round for the mean."""
        return all_reduce_bytes(sum(4 * self._buffers[name].numel() for name in self._averaged), self.group.size())

    def begin(self, factor: float = 1.0) -> None:
        """Send copies: training may change the buffers meanwhile. `factor` is this rank's weight in the mean; over all
        ranks it has the mean 1."""
        self._sent = self._copies()
        self._arrived = {name: self._sent[name].clone() for name in self._copied}
        if self.group.size() == 1:
            return
        if self._averaged:
            device = self._buffers[self._averaged[0]].device
            sent = (self._sent[name].to(device, torch.float32).flatten() for name in self._averaged)
            self._flat = torch.cat(list(sent)).mul_(factor / self.group.size())
            self._works.append(dist.all_reduce(self._flat, group=self.group, async_op=True))
        root = dist.get_global_rank(self.group, 0)
        copied = self._arrived.values()
        self._works += [dist.broadcast(one, root, group=self.group, async_op=True) for one in copied]

    def arrive(self) -> None:
        """Wait for the result."""
        works, self._works = self._works, []
        try:
            for work in works:
                work.wait(self._timeout)
        except RuntimeError as error:
            raise LinkError(explain(error, "AllReduce")) from error
        flat, self._flat = self._flat, None
        sizes = [self._sent[name].numel() for name in self._averaged]
        parts = flat.split(sizes) if flat is not None else [self._sent[name] for name in self._averaged]
        for name, part in zip(self._averaged, parts, strict=True):
            self._arrived[name] = part.view(self._sent[name].shape).to(self._sent[name])

    def apply(self, progress: float = 0.0) -> None:
        """Set the buffers to the result; to means, add this share of what this rank changed since `begin`."""
        for name, one in self._buffers.items():
            arrived = self._arrived[name]
            moved = name in self._averaged and progress and not torch.equal(one, self._sent[name])
            one.copy_(arrived + progress * (one - self._sent[name]) if moved else arrived)
        self._saved, self._sent, self._arrived = self._arrived, {}, {}

    def keep(self) -> None:
        """Keep the result for `state` and `swapped_in`, and leave the model's buffers as they are."""
        self._saved, self._sent, self._arrived = self._arrived, {}, {}

    def finish(self) -> None:
        """Wait for the result and set the buffers to it."""
        self.arrive()
        self.apply()

    def in_flight(self) -> dict[str, dict[str, Tensor]]:
        """What was sent and what arrived, for checkpoints; call `arrive` before."""
        return {"sent": _cloned(self._sent), "arrived": _cloned(self._arrived)}

    def load_in_flight(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        self._sent, self._arrived = _cloned(state["sent"]), _cloned(state["arrived"])

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
        return _cloned(self._saved)

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


def _cloned(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: one.clone() for name, one in named.items()}
