"""Local rounds: the outer steps of a run with local steps, added up, and the line that every view shows of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from gradwire.events import Event, OuterStepped
from gradwire.observe.format import clean, percent, seconds

KEPT = 60
# Ranks whose steps are shown one by one.
NAMED = 8


@dataclass(slots=True)
class LocalRounds:
    """Adds up one rank's `outer_stepped` events."""

    count: int = 0
    waited: float = 0.0
    # Seconds that this rank stood still for slower ones, where rounds end by time.
    rank_wait: float = 0.0
    last: OuterStepped | None = None
    alignments: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))

    def take(self, event: Event) -> None:
        if isinstance(event, OuterStepped):
            self.count, self.last = self.count + 1, event
            self.waited += event.waited
            self.rank_wait += event.rank_wait
            if event.alignment is not None:
                self.alignments.append(event.alignment)

    @property
    def rhythm(self) -> str:
        """ "every 20 steps", "every 30 s in 4 fragments, applied 2 steps after sending"; empty without rounds."""
        if self.last is None:
            return ""
        every = f"every {length_of(self.last)}"
        if self.last.fragments > 1:
            every += f" in {self.last.fragments} fragments"
        return every + (f", applied {_steps(self.last.delay)} after sending" if self.last.delay else "")

    @property
    def headline(self) -> str:
        """Rhythm, divergence and outer step in one line; empty without rounds."""
        last = self.last
        if last is None:
            return ""
        parts = [f"{self.rhythm}: {self.count} outer step{'s' * (self.count != 1)}"]
        if last.alignment is not None:
            parts.append(f"alignment of replicas {last.alignment:.2f}")
        if last.norm is not None:
            parts.append(f"pseudo-gradient {last.norm:.3g}")
        if last.outer_norm is not None:
            parts.append(f"outer step {last.outer_norm:.3g}")
        if last.ranks:
            parts.append(f"of {len(last.ranks)} ranks")
        if last.weight is not None:
            parts.append(f"steps by rank {steps_by_rank(last.rank_steps)}")
            parts.append(f"weight of this rank {percent(last.weight)}")
            parts.append(f"waited {seconds(self.rank_wait)} for slower ranks")
        parts.append(f"waited {seconds(self.waited)} for exchanges")
        return ", ".join(parts) + f" (last: {clean(last.reason, 200)})"

    def copy(self) -> LocalRounds:
        return LocalRounds(self.count, self.waited, self.rank_wait, self.last, self.alignments.copy())


def length_of(event: OuterStepped) -> str:
    """Of a round: "20 steps", "30 s"."""
    return f"{event.sync_seconds:g} s" if event.sync_seconds else _steps(event.sync_every)


def steps_by_rank(steps: Sequence[int]) -> str:
    """ "10, 4, 2"; of many ranks "2 to 10"."""
    return ", ".join(map(str, steps)) if len(steps) <= NAMED else f"{min(steps)} to {max(steps)}"


def _steps(count: int) -> str:
    return f"{count} step{'s' * (count != 1)}"
