"""StepResume: how a site continues in the middle of a step when one of its followers died.

The leader is alive, and what it has submitted to the trees remains valid. The remaining ranks

    1. write to torch's store how far each one is: its step, how many buckets have their result, how many were summed
    2. sum again the buckets whose sum the leader misses, from the gradients as they were before the first attempt;
       the weight of the sum is the number of ranks that contribute
    3. receive from the leader, one by one, the results that they miss
    4. a rank that still waits for results of an earlier step cannot contribute: it receives the leader's state first

A follower that is a step ahead of the leader misses nothing: it has the results that the leader was sending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.tree.state_transfer import TransferableState

# Tags of a state's parts; a result's tag is its bucket's number within the step.
STATE_TAG: Final = 1 << 20


class StepPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a rank is: its step, and how many of its buckets have their result here and were summed."""

    step: int
    received: int = 0
    summed: int = 0


@dataclass(slots=True)
class StepProgress:
    """The current step inside a site: gradients as they were before they were summed, and results between sites.

    `started` counts the buckets whose sum was begun, `summed` those whose sum ended.
    """

    started: int = 0
    summed: int = 0
    tree_results: list[Future[None]] = field(default_factory=list)
    _saved: dict[int, Tensor] = field(default_factory=dict)

    def clear(self) -> None:
        """A new step begins; the memory is kept."""
        self.started = self.summed = 0
        self.tree_results = []

    def save(self, number: int, gradient: Tensor) -> None:
        saved = self._saved.get(number)
        if saved is None or saved.shape != gradient.shape:
            saved = self._saved[number] = torch.empty_like(gradient)
        saved.copy_(gradient)
        self.started = max(self.started, number + 1)

    def restore(self, number: int, gradient: Tensor) -> None:
        """Undo an attempt; a bucket without an attempt is unchanged."""
        if number < self.started:
            gradient.copy_(self._saved[number])

    def add_sum(self, number: int, result: Future[None]) -> None:
        self.summed, self.tree_results = number + 1, [*self.tree_results[:number], result]


@dataclass(frozen=True, slots=True)
class StepResume:
    """The rest of a step for one rank. `first_missing` is the first bucket whose result it misses; None: a step ahead.

    Only the leader has `missing`: by rank in the group, the first bucket that each follower misses. The followers in
    `behind` receive its state.
    """

    progress: StepProgress
    summed: int
    weight: int
    first_missing: int | None
    missing: Mapping[int, int] = field(default_factory=dict)
    behind: frozenset[int] = frozenset()
    contributes: bool = True

    @classmethod
    def of(cls, group_rank: int, positions: Sequence[StepPosition], progress: StepProgress) -> StepResume:
        """From the positions of all ranks, the leader's first."""
        leader, own = positions[0], positions[group_rank]
        if own.step > leader.step:
            return cls(progress, 0, len(positions), None)
        missing = {
            other: at.received if at.step == leader.step else 0
            for other, at in enumerate(positions)
            if other and at.step <= leader.step
        }
        behind = frozenset(other for other in missing if positions[other].step < leader.step)
        return cls(
            progress,
            summed=leader.summed,
            weight=1 + len(missing) - len(behind),
            first_missing=missing.get(group_rank, 0),
            missing={} if group_rank else missing,
            behind=behind,
            contributes=group_rank not in behind,
        )

    def prepare(self, number: int, gradient: Tensor) -> None:
        """Before a bucket is summed again: the gradient of before, or zeros from a rank that does not contribute."""
        if self.contributes:
            self.progress.restore(number, gradient)
        else:
            gradient.zero_()

    def send(self, group: dist.ProcessGroup, number: int, gradient: Tensor) -> None:
        """The leader's result to all followers that miss it."""
        for follower, first in self.missing.items():
            if number >= first:
                group.send([gradient], follower, number).wait()

    def receive(self, group: dist.ProcessGroup, number: int, gradient: Tensor) -> None:
        if self.first_missing is not None and number >= self.first_missing:
            group.recv([gradient], 0, number).wait()

    def send_state(
        self, group: dist.ProcessGroup, received: Sequence[Tensor], own: TransferableState | None, step: int
    ) -> None:
        """Before the first result: what the leader itself received in this step, or its own state to those behind."""
        for follower in self.missing:
            state = list(received)
            if not state and follower in self.behind and own is not None:
                header, tensors = own.save(step)
                state = [torch.frombuffer(bytearray(header), dtype=torch.uint8), _flat(tensors)]
            group.send([torch.tensor([part.numel() for part in state] or [0, 0])], follower, STATE_TAG).wait()
            for number, part in enumerate(state):
                group.send([part], follower, STATE_TAG + 1 + number).wait()

    def receive_state(self, group: dist.ProcessGroup, own: TransferableState | None) -> None:
        sizes = torch.zeros(2, dtype=torch.int64)
        group.recv([sizes], 0, STATE_TAG).wait()
        if not int(sizes[0]):
            return
        header, body = (torch.empty(int(size), dtype=torch.uint8) for size in sizes)
        group.recv([header], 0, STATE_TAG + 1).wait()
        group.recv([body], 0, STATE_TAG + 2).wait()
        if own is not None:
            own.load(bytes(header.numpy()), body)


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    parts = [tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)
