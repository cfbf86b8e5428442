"""Decision timing: from which step on a decision is in force.

A decision is made during a step, from what the step before has shown. It reaches the other ranks two operations' time
after that step's begin: pulses to rank 0, the decision to all. Where steps are longer than that, waiting for it at the
next step costs nothing, and it is in force there (delay EARLY). Where they are not (far networks, little compute),
ranks would wait; there it is in force one step later (delay SAFE).

All ranks must know which of the two holds before they have the decision, so each decision says it for those after it:
at a step's begin, ranks use the decision that was made `delay` steps before, with the delay that the decision in force
until then names.

In: how late each rank received the last decision, against when the next step could have used it. Out: the delay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

EARLY: Final = 1
SAFE: Final = 2
# Decisions in a row that reached every rank in time before ranks wait for them. So even where they are in time by
# chance only, at most one step in so many waits. Chosen, not measured.
IN_TIME: Final = 8


@dataclass(slots=True)
class DecisionTiming:
    """Begins with SAFE: nothing is known."""

    delay: int = SAFE
    _in_time: int = 0

    def take(self, late: Iterable[float]) -> int:
        """Seconds by which ranks received a decision after they could have used it: negative in time, 0 unknown."""
        known = [one for one in late if one]
        if known:
            self._in_time = 0 if max(known) > 0 else self._in_time + 1
            self.delay = EARLY if self._in_time >= IN_TIME else SAFE
        return self.delay
