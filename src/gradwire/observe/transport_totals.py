"""Transport totals: adds up `transferred` events, of a run or of one pair of ranks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from gradwire.events import Transferred

# Reasons for the end of a transfer that are counted; a recording may contain any number of them.
MOST_CLOSES: Final = 64


@dataclass(slots=True)
class TransportTotals:
    """Sums over recorded transfers; `closes` has at most `most_closes` reasons."""

    transfers: int = 0
    nbytes: int = 0
    missing: int = 0
    returned: int = 0
    retransmitted: int = 0
    closes: Counter[str] = field(default_factory=Counter)
    most_closes: int = MOST_CLOSES

    def add_received(self, event: Transferred) -> None:
        self.transfers += event.transfers
        self.nbytes += event.nbytes
        self.missing += event.missing
        for reason, count in event.closes.items():
            if reason in self.closes or len(self.closes) < self.most_closes:
                self.closes[reason] += count

    def add_sent(self, event: Transferred) -> None:
        self.returned += event.returned
        self.retransmitted += event.retransmitted
