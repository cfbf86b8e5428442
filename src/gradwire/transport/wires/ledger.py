"""Ledger: sums of finished transfers by peer, since the last read.

In: every transfer as it ends, from any thread. Out: sums, which start at zero after every read. Adding takes under a
microsecond, so every transfer is counted.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final

# The peer of a transfer whose peers are not known: a collective of a torch process group.
ALL_PEERS: Final = -1


@dataclass(slots=True)
class Account:
    """`transfers`, `nbytes`, `missing`, `seconds` and `closes` are of data received from the peer; `returned` are bytes
    sent to it that did not arrive and stay in the residual."""

    transfers: int = 0
    nbytes: int = 0
    missing: int = 0
    returned: int = 0
    seconds: float = 0.0
    closes: dict[str, int] = field(default_factory=dict)

    def add(self, other: Account) -> None:
        self.transfers += other.transfers
        self.nbytes += other.nbytes
        self.missing += other.missing
        self.returned += other.returned
        self.seconds += other.seconds
        for reason, count in other.closes.items():
            self.closes[reason] = self.closes.get(reason, 0) + count


class Ledger:
    """One wire's accounts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._accounts: dict[int, Account] = {}

    def add_received(self, peer: int, nbytes: int, seconds: float, missing: int = 0, reason: str = "complete") -> None:
        """A transfer from `peer` ended."""
        with self._lock:
            account = self._accounts.get(peer)
            if account is None:
                account = self._accounts[peer] = Account()
            account.transfers += 1
            account.nbytes += nbytes
            account.missing += missing
            account.seconds += seconds
            account.closes[reason] = account.closes.get(reason, 0) + 1

    def add_undelivered(self, peer: int, nbytes: int) -> None:
        """`nbytes` that were sent to `peer` did not arrive."""
        with self._lock:
            self._accounts.setdefault(peer, Account()).returned += nbytes

    def read(self) -> dict[int, Account]:
        """What was added since the last call."""
        with self._lock:
            accounts, self._accounts = self._accounts, {}
            return accounts
