"""Ladder: the rungs that `auto` chooses from, least lossy first, and the cost of each in work and in accuracy.

`work` is the processor time per element of encoding, summing and decoding in the exchange of the rung. The differences
between rungs are those of the CPU column of `benchmarks/hook.py --ranks 2` (11 M elements), minus the time of the
sockets for the bytes. The lowest value is the kernels' time for the sparsest rung (docs/results/kernels.md). From small
shares the saving of one-pass selection is subtracted (0.4 ns at 1 %, 0.2 at 0.1 %). The cost model scales `work` to the
machine it runs on.

`slowdown` models the cost of lossiness: how many times more steps the same accuracy takes, with error feedback.
docs/results/accuracy.md has what a rung loses after the same number of steps (the demo's CNN, Fashion-MNIST). There,
2 epochs instead of 3 lose 2.4 points (one seed), about 5.7 for each e-fold of steps: 10 % loses 0.2 points (1.04 times
the steps), 3 % 0.7 (1.13), 1 % 1.2 (1.24), 0.3 % 2.0 (1.4), 0.1 % 3.5 (1.9). Other models lose less or more; the
accuracy guard corrects for that. A rung that overlaps with compute costs no time; then the least lossy is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gradwire.level import Level


@dataclass(frozen=True, slots=True)
class Rung:
    """One level, its work in nanoseconds per element, and its factor on the number of steps."""

    level: Level
    work: float
    slowdown: float


LADDER: Final[tuple[Rung, ...]] = (
    Rung(Level.parse("off"), 0.0, 1.0),
    Rung(Level.parse("fp16"), 3.4, 1.0005),
    Rung(Level.parse("int8"), 2.6, 1.002),
    Rung(Level.parse("int4"), 2.2, 1.005),
    Rung(Level.parse("lowrank:4"), 5.6, 1.02),
    Rung(Level.parse("topk:0.1+int8"), 5.5, 1.05),
    Rung(Level.parse("topk:0.03+int8"), 2.6, 1.13),
    Rung(Level.parse("topk:0.01+int8"), 1.5, 1.25),
    Rung(Level.parse("topk:0.003+int8"), 1.2, 1.45),
    Rung(Level.parse("topk:0.001+int8"), 1.2, 2.0),
)

_INDEX: Final = {rung.level: index for index, rung in enumerate(LADDER)}


def index_of(level: Level) -> int:
    """The index of a level's rung; that of off for a level that is not on the ladder."""
    return _INDEX.get(level, 0)
