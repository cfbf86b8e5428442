"""Outcome: how a run stands, by what its ranks recorded: running, failed or ended. Pure.

A rank *failed* when it recorded that synchronisation failed and made no step after that. It is *lost* when the others
recorded that they go on without it. A run whose ranks neither ended nor failed, and whose files nobody touches any
more, was stopped from outside (killed, or its hosts went down): it failed, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

Status = Literal["waiting", "running", "failed", "ended"]

# Seconds without a sign after which nobody writes any more: the recorder touches its file every five (`recorder.BEAT`).
SILENCE: Final = 15.0
# Errors that say that something happened to another rank; any other error is a cause.
CONSEQUENCES: Final = ("LinkError:", "LostPeerError:", "SiteError:", "FarewellError:", "CollectiveError:")


@dataclass(slots=True)
class RankOutcome:
    """What became of one rank: the step at which it failed, whether it ended in order, whether others lost it."""

    failed: int | None = None
    ended: bool = False
    lost: bool = False

    def stepped(self, step: int) -> None:
        """A step was made; one of before the failure may be told after it."""
        self.ended = False
        if self.failed is not None and step > self.failed:
            self.failed = None


@dataclass(slots=True)
class Incident:
    """Something that went wrong, and when; `ranks` are all that told of it, the first is `rank`."""

    time: float
    rank: int
    step: int
    kind: str
    detail: str
    ranks: tuple[int, ...] = ()

    def also(self, rank: int, error: str) -> None:
        """The same failure as another rank saw it. What happened on a rank itself says more than what others saw."""
        self.ranks = tuple(sorted({*self.ranks, rank}))
        if self.detail.startswith(CONSEQUENCES) and not error.startswith(CONSEQUENCES):
            self.rank, self.detail = rank, error

    @property
    def who(self) -> str:
        """ "rank 0", "ranks 0, 2"."""
        ranks = self.ranks or (self.rank,)
        return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def status_of(ranks: Iterable[RankOutcome], silent: bool) -> Status:
    """How a run of these ranks stands; `silent` when nobody has written for SILENCE seconds."""
    known = list(ranks)
    present = [rank for rank in known if not rank.lost]
    if not known:
        return "failed" if silent else "waiting"
    if any(rank.failed is not None for rank in present) or not present:
        return "failed"
    if all(rank.ended for rank in present):
        return "ended"
    return "failed" if silent else "running"
