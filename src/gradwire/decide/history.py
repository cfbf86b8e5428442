"""Experience: what steps at each rung really took, for as long as the network stays as it was.

A prediction is a model; a step that was run is a fact. Per rung the last few steps are kept:

    known      a rung's median step, once two of its steps were seen and they are not too old
    doubt      the ratio of what the current rung takes to what the model says of it; unknown rungs are scaled by it

When the network changed (the View counts changes; sense/change_detector.py finds them) everything is forgotten:
what rungs took on the old network says nothing any more.
A rung that was tried and left again is remembered twice as long each time, so that a steady network is left in peace.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from gradwire.types import StepFacts

# Steps kept of each rung (noise averages out; the detector finds changes), and how many make it known.
KEPT: Final = 15
ENOUGH: Final = 2
# Steps after which a rung that was left counts as unknown, doubled each time it is left, up to the most.
MEMORY: Final = 200
LONGEST: Final = 2400
# The model is believed as far as it was right to this share.
RIGHT: Final = 0.1


@dataclass(slots=True)
class _RungHistory:
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    busy: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    typical: float = 0.0
    floor: float = 0.0
    last: int = 0
    memory: int = MEMORY

    def add(self, facts: StepFacts, step: int) -> None:
        self.seconds.append(facts.seconds)
        self.busy.append(facts.busy)
        self.typical, self.last = statistics.median(self.seconds), step
        self.floor = facts.wire_bytes / statistics.median(self.busy)


@dataclass(slots=True)
class History:
    """Keeps the steps; `take` once per step with the rung it ran at."""

    _rungs: dict[int, _RungHistory] = field(default_factory=dict)
    _step: int = 0

    def take(self, index: int, facts: StepFacts) -> None:
        """Add a step."""
        self._step += 1
        if facts.busy > 0 and facts.seconds > 0:
            self._rungs.setdefault(index, _RungHistory()).add(facts, self._step)

    def forget(self) -> None:
        """The network changed."""
        self._rungs = {}

    def left(self, index: int) -> None:
        """A rung was tried and not kept."""
        rung = self._rungs.get(index)
        if rung is not None:
            rung.memory = min(LONGEST, 2 * rung.memory)

    def seconds(self, index: int) -> float | None:
        """What a step at the rung takes; None where nobody knows."""
        rung = self._rungs.get(index)
        if rung is None or len(rung.seconds) < ENOUGH or self._step - rung.last > rung.memory:
            return None
        return rung.typical

    def doubt(self, index: int, predicted: float) -> float:
        """How many times longer the rung's steps take than predicted; 1 where the model is right or nobody knows."""
        seen = self.seconds(index)
        if seen is None or predicted <= 0 or abs(seen / predicted - 1) <= RIGHT:
            return 1.0
        return seen / predicted

    @property
    def floor(self) -> float:
        """Bytes per second that were carried for certain: nothing is taken off for latency or overhead."""
        return max((rung.floor for rung in self._rungs.values()), default=0.0)
