"""Progress of a transfer: quiet when it is short, otherwise what is sent, how much, and how far, in few lines."""

from __future__ import annotations

import pytest

from gradwire.clock import VirtualClock
from gradwire.integrations.transfer_progress import TransferProgress
from gradwire.units import Bytes


def lines(caplog: pytest.LogCaptureFixture, seconds: int, shown: bool = True) -> list[str]:
    """The lines of a transfer of 1 MB a second."""
    clock = VirtualClock()
    progress = TransferProgress("weights to rank 1", Bytes(seconds * 1_000_000), shown=shown, clock=clock)
    for second in range(1, seconds + 1):
        clock.advance(1.0)
        progress.update(second * 1_000_000)
    progress.finish()
    return [record.getMessage() for record in caplog.records]


def test_a_short_transfer_is_not_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog, 2) == []


def test_a_long_transfer_says_what_how_much_and_how_far(caplog: pytest.LogCaptureFixture) -> None:
    first, *_, last = lines(caplog, 12)
    assert first.startswith(
        "gradwire: sending weights to rank 1: 3 MB of 12 MB (25 %) after 3 s, about 9 s left; ranks that build or load"
    )
    assert last == "gradwire: sent weights to rank 1: 12 MB in 12 s"


def test_hours_are_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    assert len(lines(caplog, 3 * 3600)) < 15


def test_other_ranks_are_quiet(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog, 100, shown=False) == []
