"""Tree round: what ranks average beside the weights of a round, where those go along a plan's trees.

    ranks     each rank that the job may have has a value of its own, 1 on that rank and 0 on the others: in the mean,
              1 / n for each of the n ranks that took part
    sketch    of the pseudo-gradient, for the divergence
    vote      for the number of local steps of the next round (local_steps/period_vote.py), where gradwire chooses it
    buffers   floating-point values, and the digits of integers

All of it is one bucket of the step (local_steps/tree_mean.py). Where ranks may be lost and rejoin it therefore counts
the same ranks as the mean of the weights does, needs no process group, and is equal on all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.local_steps.buffer_average import BufferAverage
from gradwire.local_steps.divergence import SIZE, Divergence, DivergenceMeter, divergence
from gradwire.local_steps.integer_digits import DIGITS, from_digits, to_digits
from gradwire.local_steps.period_vote import VALUES, PeriodVote
from gradwire.local_steps.tree_mean import TreeMean
from gradwire.runtime.session import Session


class TreeRound:
    """`begin` and then `buffers`, `sums`, `votes` and `ranks`, of one exchange."""

    def __init__(self, mean: TreeMean, session: Session, rank: int, places: int) -> None:
        self._mean, self._session = mean, session
        self._own = torch.zeros(places)
        self._own[rank] = 1.0
        # What is sent for buffers with the next exchange.
        self.outgoing: list[Tensor] = []
        self.vote = PeriodVote(lambda: None)

    def begin(self, sums: Tensor) -> None:
        outgoing, self.outgoing = self.outgoing, []
        vote = torch.tensor(self.vote.cast())
        self._mean.begin(torch.cat([self._own, sums.float().cpu(), vote, *outgoing]), self._session.step)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that took part."""
        return tuple(int(rank) for rank in self._mean.wait()[: len(self._own)].nonzero())

    @property
    def sums(self) -> Tensor:
        """The sum over these ranks."""
        start = len(self._own)
        return self._mean.wait()[start : start + SIZE + 2] * len(self.ranks)

    @property
    def votes(self) -> list[float]:
        """Their means over the same ranks, equal on all."""
        start = len(self._own) + SIZE + 2
        found: list[float] = self._mean.wait()[start : start + VALUES].tolist()
        return found

    @property
    def buffers(self) -> Tensor:
        return self._mean.wait()[len(self._own) + SIZE + 2 + VALUES :]


class TreeDivergence(DivergenceMeter):
    """The divergence of the ranks that took part."""

    def __init__(self, shared: TreeRound, group: dist.ProcessGroup, timeout: float) -> None:
        super().__init__(group, timeout)
        self.shared = shared

    def begin(self, gradients: Sequence[tuple[int, Tensor]]) -> None:
        self.measure(gradients)
        self.shared.begin(self._sums)

    def finish(self) -> Divergence:
        ranks = self.shared.ranks
        return divergence(self.shared.sums, float(self._own_square), len(ranks), ranks)


class TreeBuffers(BufferAverage):
    """Floating-point buffers become their mean, others their rounded mean: no rank is certain to be there."""

    def __init__(
        self, shared: TreeRound, buffers: Mapping[str, Tensor], group: dist.ProcessGroup, timeout: float
    ) -> None:
        super().__init__(buffers, group, timeout)
        self._shared = shared

    def begin(self, factor: float = 1.0) -> None:
        assert factor == 1.0, "rounds of equal steps"
        self._sent, self._arrived = self._copies(), {}
        self._shared.outgoing = [self._sent[name].flatten().to("cpu", torch.float32) for name in self._averaged]
        self._shared.outgoing += [to_digits(self._sent[name]) for name in self._copied]

    def arrive(self) -> None:
        mean = self._shared.buffers
        sizes = [self._sent[name].numel() for name in self._averaged]
        *averaged, digits = mean.split([*sizes, mean.numel() - sum(sizes)])
        for name, part in zip(self._averaged, averaged, strict=True):
            self._arrived[name] = part.view(self._sent[name].shape).to(self._sent[name])
        counts = [DIGITS * self._sent[name].numel() for name in self._copied]
        for name, part in zip(self._copied, digits.split(counts) if counts else (), strict=True):
            self._arrived[name] = from_digits(part, self._sent[name])
