"""Shared-mask trial: the energy that a shared mask keeps of a job's own gradient, from rank 0's sample alone. Pure.

With a shared mask every rank sends the elements that are largest on one of them, the leader of that step. What is large
on the leader is not what is large here, so less is kept than by each rank's own top-k, and more waits. How much less
depends on how alike the ranks' gradients are.

Rank 0 has a sample of its own gradient only. Its samples of some steps before are what other ranks would have: batches
differ from step to step as they do from rank to rank, while the weights hardly change in between. So a few ranks are
played by delayed copies of the same samples, each with a residual of its own, and lead in turn as real ones do.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np
from numpy.typing import NDArray

Sample = NDArray[np.float32]

# Ranks that are played: with more, the own mask comes less often, which changes little from four on.
PLAYED: Final = 4
# Gain of the average of kept energies: a mean over about 20 steps.
GAIN: Final = 0.05
# Steps of a trial before its value is used; until then a mask keeps its share, as one without any choice would.
SETTLED: Final = 20
# After so many steps the trials take turns.
STEADY: Final = 200


class SharedMaskTrial:
    """Shared-mask selection with error feedback of one share, on the sample only."""

    def __init__(self, share: float) -> None:
        self.share, self.kept, self.steps = share, 1.0, 0
        self._waiting: NDArray[np.float32] | None = None

    def take(self, samples: NDArray[np.float32]) -> None:
        """One step; the rows are what the ranks have, rank 0 first."""
        if self._waiting is None or self._waiting.shape != samples.shape:
            self._waiting, self.steps = np.zeros_like(samples), 0
        waiting = self._waiting
        waiting += samples
        size = np.abs(waiting[self.steps % len(waiting)])
        count = max(1, round(self.share * len(size)))
        sent = size >= np.partition(size, len(size) - count)[len(size) - count]
        own = waiting[0]
        energy = float(np.dot(own, own))
        chosen = own[sent]
        waiting[:, sent] = 0.0
        self.steps += 1
        if energy > 0:
            kept = float(np.dot(chosen, chosen)) / energy
            self.kept += max(GAIN, 1 / self.steps) * (kept - self.kept)


class SharedMaskEnergy:
    """Trials of several shares. They begin when a price is first asked for, and end when no one asks any more: where
    nothing is summed along trees they cost nothing."""

    def __init__(self, shares: tuple[float, ...]) -> None:
        self._shares = shares
        self._trials: dict[float, SharedMaskTrial] = {}
        self._last: deque[Sample] = deque(maxlen=PLAYED)
        self._asked = False
        self._turn = 0

    def take(self, sample: Sample) -> None:
        """One step's sample, with those before in the place of other ranks'."""
        if self._last and len(self._last[0]) != len(sample):
            self._last.clear()
        self._last.appendleft(sample)
        if not self._asked:
            self._trials = {}
            return
        self._asked = False
        self._trials = self._trials or {share: SharedMaskTrial(share) for share in self._shares}
        if len(self._last) == PLAYED:
            rows = np.stack(self._last)
            for trial in self._next():
                trial.take(rows)

    @property
    def settled(self) -> bool:
        """Whether the energies are those of this job's gradient, where anyone asks for them."""
        return all(trial.steps >= SETTLED for trial in self._trials.values())

    def kept(self, share: float) -> float:
        """The share of the energy that a shared mask of this share sends: of its trial, or between the two next to
        it."""
        self._asked = True
        known = sorted(one for one, trial in self._trials.items() if trial.steps >= SETTLED)
        if not known:
            return share
        shares, kept = [*known, 1.0], [*(self._trials[one].kept for one in known), 1.0]
        return float(np.interp(np.log(share), np.log(shares), kept))

    def _next(self) -> list[SharedMaskTrial]:
        """All trials, later one after the other, which saves most of their time."""
        trials = list(self._trials.values())
        if any(trial.steps < STEADY for trial in trials):
            return trials
        self._turn = (self._turn + 1) % len(trials)
        return [trials[self._turn]]
