"""Resume: how a site goes on, in the middle of a step, when one of its followers died.

The leader lives, and so does its part in the plan: what it sent across stays sent. Those who are left

    1. note in torch's store where they stand: the step, how many of its buckets have their result, how many were summed
    2. sum again the buckets of which the leader has no sum, from the gradients as they were before the first attempt;
       the sum is weighted by those who took part
    3. get from the leader, one by one, the results that they miss
    4. who still waits for results of an earlier step has nothing to add to this one: it gets the leader's state first

A follower that is a step ahead of the leader misses nothing: it has the results that the leader was sharing.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.tree.state_transfer import TransferableState

# Tags of a state; buckets use their place in the step.
SIZES: Final = 1 << 20


class StepPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a rank stands: its step, the buckets of it whose result is here, and those that were summed."""

    step: int
    told: int = 0
    summed: int = 0


class PendingResult:
    """What became of a bucket between the sites; may be asked more than once."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._error: BaseException | None = None

    def put(self, error: BaseException | None) -> None:
        self._error = error
        self._done.set()

    def wait(self) -> BaseException | None:
        """The plan's deadlines end it."""
        self._done.wait()
        return self._error


@dataclass(slots=True)
class StepProgress:
    """The step under way inside a site: gradients as they were before they were summed, and what went across."""

    begun: int = 0
    summed: int = 0
    crossed: list[PendingResult] = field(default_factory=list)
    _before: dict[int, Tensor] = field(default_factory=dict)

    def clear(self) -> None:
        """Another step begins; the memory is kept."""
        self.begun = self.summed = 0
        self.crossed = []

    def save(self, place: int, gradient: Tensor) -> None:
        before = self._before.get(place)
        if before is None or before.shape != gradient.shape:
            before = self._before[place] = torch.empty_like(gradient)
        before.copy_(gradient)
        self.begun = max(self.begun, place + 1)

    def restore(self, place: int, gradient: Tensor) -> None:
        """Undo what an attempt left; what was not attempted is as it was."""
        if place < self.begun:
            gradient.copy_(self._before[place])


@dataclass(frozen=True, slots=True)
class StepResume:
    """The rest of a step for one rank. `first` is the first bucket whose result it misses; None: it is a step ahead.

    Only the leader has `others`: by place in the group, the first bucket that each one misses. `behind` are those that
    get its state.
    """

    attempts: StepProgress
    summed: int
    weight: int
    first: int | None
    others: Mapping[int, int] = field(default_factory=dict)
    behind: frozenset[int] = frozenset()
    silent: bool = False

    @classmethod
    def of(cls, place: int, positions: Sequence[StepPosition], attempts: StepProgress) -> StepResume:
        """By everybody's position, the leader's first."""
        leader, own = positions[0], positions[place]
        if own.step > leader.step:
            return cls(attempts, 0, len(positions), None)
        firsts = {
            other: at.told if at.step == leader.step else 0
            for other, at in enumerate(positions)
            if other and at.step <= leader.step
        }
        behind = frozenset(other for other in firsts if positions[other].step < leader.step)
        weight = 1 + len(firsts) - len(behind)
        return cls(
            attempts, leader.summed, weight, firsts.get(place, 0), {} if place else firsts, behind, place in behind
        )

    def prepare(self, place: int, gradient: Tensor) -> None:
        """A bucket that is summed again: as it was, or nothing from who has nothing to add."""
        if self.silent:
            gradient.zero_()
        else:
            self.attempts.restore(place, gradient)

    def send(self, group: dist.ProcessGroup, place: int, gradient: Tensor) -> None:
        """The leader's result to all who miss it."""
        for other, first in self.others.items():
            if place >= first:
                group.send([gradient], other, place).wait()

    def receive(self, group: dist.ProcessGroup, place: int, gradient: Tensor) -> None:
        if self.first is not None and place >= self.first:
            group.recv([gradient], 0, place).wait()

    def send_state(
        self, group: dist.ProcessGroup, came: Sequence[Tensor], own: TransferableState | None, step: int
    ) -> None:
        """Before the first result: what the leader was itself handed in this step, or its own to those behind."""
        for other in self.others:
            state = list(came)
            if not state and other in self.behind and own is not None:
                header, tensors = own.give(step)
                state = [torch.frombuffer(bytearray(header), dtype=torch.uint8), _flat(tensors)]
            group.send([torch.tensor([part.numel() for part in state] or [0, 0])], other, SIZES).wait()
            for number, part in enumerate(state):
                group.send([part], other, SIZES + 1 + number).wait()

    def receive_state(self, group: dist.ProcessGroup, own: TransferableState | None) -> None:
        sizes = torch.zeros(2, dtype=torch.int64)
        group.recv([sizes], 0, SIZES).wait()
        if not int(sizes[0]):
            return
        header, body = (torch.empty(int(size), dtype=torch.uint8) for size in sizes)
        group.recv([header], 0, SIZES + 1).wait()
        group.recv([body], 0, SIZES + 2).wait()
        if own is not None:
            own.take(bytes(header.numpy()), body)


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    parts = [tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)
