"""The ledger sums finished transfers, and starts at zero after every read."""

from __future__ import annotations

import threading

from gradwire.transport.wires.ledger import Account, Ledger


def test_a_read_returns_what_was_added_since_the_last() -> None:
    ledger = Ledger()
    ledger.add_received(1, 100, 0.5)
    ledger.add_received(1, 90, 0.25, missing=10, reason="threshold")
    ledger.add_undelivered(2, 7)
    first = ledger.read()
    assert first[1] == Account(2, 190, 10, 0, 0.75, {"complete": 1, "threshold": 1})
    assert first[2] == Account(returned=7)
    assert ledger.read() == {}


def test_nothing_is_lost_between_threads() -> None:
    ledger, total = Ledger(), Account()

    def work() -> None:
        for _ in range(5000):
            ledger.add_received(0, 3, 0.0)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for account in ledger.read().values():
            total.add(account)
    for account in ledger.read().values():
        total.add(account)
    assert (total.transfers, total.nbytes, total.closes) == (20_000, 60_000, {"complete": 20_000})
