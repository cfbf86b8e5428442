"""Ladder: the rungs that `auto` chooses from, least lossy first, and the work of each.

`work` is the processor time per element of encoding, summing and decoding in the exchange of the rung. The differences
between rungs are those of the CPU column of `benchmarks/hook.py --ranks 2` (11 M elements), minus the time of the
sockets for the bytes. The lowest value is the kernels' time for the sparsest rung (docs/results/kernels.md). From small
shares the saving of one-pass selection is subtracted (0.4 ns at 1 %, 0.2 at 0.1 %); 30 % takes 1.8 times as long as
10 %. Those of ranks 32 and 64 are what their products take longer than those of rank 4; that of rank 16 lies between.
The cost model scales `work` to the machine it runs on.

30 % at 4 bits sends about as much as int2, and which of the two costs fewer steps depends on the job: on a CNN with SGD
it cost nothing where int2 cost 8 %, on a GPT with AdamW both cost 16 % (docs/results/lossiness.md). 50 % at 4 bits has
no rung: it sends three quarters of int4's bytes, but cost that GPT 10 % more steps and int4 3 %.

Low rank with factors in 4 bits has three rungs, because the rank that costs nearly as few steps as int4 depends on
the job: for a GPT with two workers it is 32, which sends a sixth to a twentieth of int4's bytes where matrices are
wide, with eight workers it is 64, and for an MLP 16. `auto` begins with 32 and goes on by what that leaves waiting
(decide/lowrank_price.py). Rank 8 is priced above what is permitted for that MLP, too, and has no rung.

What lossiness costs in steps is not a property of a level but of a level and a job: decide/price.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gradwire.level import Level


@dataclass(frozen=True, slots=True)
class Rung:
    """One level, and its work in nanoseconds per element."""

    level: Level
    work: float


LADDER: Final[tuple[Rung, ...]] = (
    Rung(Level.parse("off"), 0.0),
    Rung(Level.parse("fp16"), 3.4),
    Rung(Level.parse("int8"), 2.6),
    Rung(Level.parse("int4"), 2.2),
    Rung(Level.parse("int2"), 1.8),
    Rung(Level.parse("topk:0.3+int4"), 9.9),
    Rung(Level.parse("lowrank:64+int4"), 11.5),
    Rung(Level.parse("lowrank:32+int4"), 8.5),
    Rung(Level.parse("lowrank:16+int4"), 7.1),
    Rung(Level.parse("lowrank:4"), 5.6),
    Rung(Level.parse("topk:0.1+int8"), 5.5),
    Rung(Level.parse("topk:0.03+int8"), 2.6),
    Rung(Level.parse("topk:0.01+int8"), 1.5),
    Rung(Level.parse("topk:0.003+int8"), 1.2),
    Rung(Level.parse("topk:0.001+int8"), 1.2),
)

_INDEX: Final = {rung.level: index for index, rung in enumerate(LADDER)}


def index_of(level: Level) -> int:
    """The index of a level's rung; that of off for a level that is not on the ladder."""
    return _INDEX.get(level, 0)
