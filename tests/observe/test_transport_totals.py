"""Totals of transfers: what was received and what was sent are added apart, and reasons are bounded."""

from __future__ import annotations

from gradwire.events import Transferred
from gradwire.observe.transport_totals import TransportTotals


def transferred(**closes: int) -> Transferred:
    return Transferred(
        at=1.0, step=5, peer=1, transfers=3, nbytes=1000, missing=20, returned=7, seconds=0.5, closes=closes,
        retransmitted=11,
    )  # fmt: skip


def test_a_receiver_counts_what_came_and_a_sender_what_went_again() -> None:
    totals = TransportTotals()
    totals.add_received(transferred(complete=2, threshold=1))
    totals.add_received(transferred(complete=3))
    totals.add_sent(transferred(complete=99))
    assert (totals.transfers, totals.nbytes, totals.missing) == (6, 2000, 40)
    assert (totals.returned, totals.retransmitted) == (7, 11)
    assert totals.closes == {"complete": 5, "threshold": 1}


def test_a_recording_with_any_number_of_reasons_takes_bounded_memory() -> None:
    totals = TransportTotals(most_closes=2)
    totals.add_received(transferred(complete=1, deadline=1, made_up=1))
    totals.add_received(transferred(other=1, deadline=4))
    assert totals.closes == {"complete": 1, "deadline": 5}
