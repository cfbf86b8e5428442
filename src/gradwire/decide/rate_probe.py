"""Rate probe: when to spend one larger step on measuring whether the network got faster. Pure.

A step whose time on the network is mostly latency looks the same on a faster network, and small steps may not identify
the bandwidth after a change. In: each step's bytes and time on the network, and the view. Out: whether a larger step is
due, and how much longer it may be. One is due after PROBE_AFTER such steps, and later ones ever less often, as long as
the network does not change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gradwire.types import View

# Steps before the first probe, doubled each time up to the longest: on a steady network one probe, two changes of the
# level, in 300 steps. And how much longer (as a share) the probing step may be for each of them.
PROBE_AFTER: Final = 150
LONGEST_PROBE: Final = 800
PROBE_COST: Final = 0.005
# The share of the network's time that must be transfer of bytes for a step to show a change of the bandwidth: twice the
# bandwidth then shortens that time by a quarter, which sense/change_detector.py finds within a few steps.
SHOWN: Final = 0.5
# Of an estimate that was measured; one that was only moved by a change of the network has less.
CONFIDENT: Final = 0.5


@dataclass(slots=True)
class RateProbe:
    """Counts steps; call `take` once per step, and `sent` when a probe was decided."""

    _unmeasured: int = 0
    _after: int = PROBE_AFTER

    def take(self, nbytes: int, busy: float, view: View) -> None:
        """A step sent so many bytes, and was busy with them for so many seconds."""
        link = view.group
        shows = link.confidence >= CONFIDENT and nbytes >= SHOWN * busy * (link.bandwidth or 0.0)
        self._unmeasured = 0 if shows or link.age <= 0 else self._unmeasured + 1

    def network_changed(self) -> None:
        self._after = PROBE_AFTER

    def sent(self) -> None:
        self._unmeasured, self._after = 0, min(LONGEST_PROBE, 2 * self._after)

    @property
    def due(self) -> bool:
        return self._unmeasured >= self._after

    @property
    def longest(self) -> float:
        """How long a probing step may be, relative to the present ones."""
        return 1 + PROBE_COST * self._unmeasured
