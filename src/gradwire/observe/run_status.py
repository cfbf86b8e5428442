"""Run status: waiting, running, failed or ended, from what the ranks recorded. Pure.

A rank *failed* if it recorded a failed synchronisation and no step after it. It is *lost* if the others recorded that
they continue without it. A run whose ranks neither ended nor failed, and whose files are no longer touched, was
stopped from outside (killed, or its hosts went down): it has failed, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

Status = Literal["waiting", "running", "failed", "ended"]

# Seconds without a write after which a run is over: three times `recorder.TOUCH_INTERVAL`.
SILENCE: Final = 15.0
# Errors that follow from a failure of another rank; any other error is a cause.
CONSEQUENCES: Final = ("LinkError:", "LostPeerError:", "SiteError:", "PeerClosedError:", "CollectiveError:")


@dataclass(slots=True)
class RankOutcome:
    """One rank's outcome: the step at which it failed, whether it ended normally, whether the others lost it."""

    failed: int | None = None
    ended: bool = False
    lost: bool = False

    def stepped(self, step: int) -> None:
        """A step was recorded; a step from before the failure may be recorded after it."""
        self.ended = False
        if self.failed is not None and step > self.failed:
            self.failed = None


@dataclass(slots=True)
class Incident:
    """A fault, failure or warning; `ranks` are all ranks that reported it, `rank` is the one whose detail is kept."""

    time: float
    rank: int
    step: int
    kind: str
    detail: str
    ranks: tuple[int, ...] = ()

    def merge(self, rank: int, error: str) -> None:
        """Add another rank's report of the same failure. A cause replaces the detail of a consequence."""
        self.ranks = tuple(sorted({*self.ranks, rank}))
        if self.detail.startswith(CONSEQUENCES) and not error.startswith(CONSEQUENCES):
            self.rank, self.detail = rank, error

    @property
    def who(self) -> str:
        """ "rank 0", "ranks 0, 2"."""
        ranks = self.ranks or (self.rank,)
        return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def status_of(ranks: Iterable[RankOutcome], silent: bool) -> Status:
    """The status of a run with these ranks; `silent` if nothing was written for SILENCE seconds."""
    known = list(ranks)
    present = [rank for rank in known if not rank.lost]
    if not known:
        return "failed" if silent else "waiting"
    if any(rank.failed is not None for rank in present) or not present:
        return "failed"
    if all(rank.ended for rank in present):
        return "ended"
    return "failed" if silent else "running"
