"""A send or receive whose deadline passes while another thread polls it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from gradwire.backend.callbacks import Callbacks
from gradwire.backend.errors import CollectiveError
from gradwire.backend.p2p import P2PWork


class LateTransfer:
    def wait(self, timeout: float) -> Any:
        raise TimeoutError


def steps(work: list[P2PWork], held: list[bool]) -> Iterator[Any]:
    try:
        while True:
            yield LateTransfer()
    finally:
        held.append(work[0]._stepping.locked())


def test_a_late_receive_is_closed_by_the_thread_that_holds_its_lock() -> None:
    callbacks = Callbacks("late")
    points: Any = SimpleNamespace(callbacks=callbacks, check=lambda: None)
    created: list[P2PWork] = []
    held: list[bool] = []
    work = P2PWork(points, [], steps(created, held), 0.05, "receive from rank 1")
    created.append(work)
    work.prepare()
    with pytest.raises(CollectiveError, match="receive from rank 1: did not complete within"):
        work.wait(timedelta(0))
    callbacks.close()
    assert held == [True], "else a poll by another thread could be inside the generator that is closed"
