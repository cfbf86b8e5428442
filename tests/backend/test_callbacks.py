"""Callbacks run in submission order, on their own threads, also when one of them waits for a later one."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from gradwire.backend.callbacks import Callbacks

LIMIT = 20.0


def test_callbacks_run_in_order_and_not_on_the_callers_thread() -> None:
    callbacks = Callbacks("test")
    ran: list[tuple[int, threading.Thread]] = []

    def record(index: int) -> None:
        ran.append((index, threading.current_thread()))

    for index in range(100):
        callbacks.run(partial(record, index))
    callbacks.close()
    assert [index for index, _ in ran] == [*range(100)]
    assert threading.current_thread() not in {thread for _, thread in ran}
    assert not any(thread.is_alive() for _, thread in ran)


def test_no_thread_is_started_where_there_is_no_callback() -> None:
    callbacks = Callbacks("nothing")
    assert not [thread for thread in threading.enumerate() if "nothing" in thread.name]
    callbacks.close()


@pytest.mark.parametrize("yields", [True, False])
def test_every_callback_may_wait_for_the_next(yields: bool) -> None:
    """As many threads as there are running callbacks; all of them end."""
    callbacks = Callbacks("waiting")
    done = [threading.Event() for _ in range(6)]
    waited: list[bool] = []

    def wait_for_next(index: int) -> None:
        if yields:
            callbacks.yield_turn()
        waited.append(index == 5 or done[index + 1].wait(LIMIT))
        done[index].set()

    for index in range(6):
        callbacks.run(partial(wait_for_next, index))
    callbacks.close()
    assert waited == [True] * 6
    assert not [thread for thread in threading.enumerate() if "waiting" in thread.name]


def test_callbacks_submitted_while_one_waits_still_run_in_order() -> None:
    callbacks, go = Callbacks("test"), threading.Event()
    ran: list[int] = []

    def wait() -> None:
        callbacks.yield_turn()
        go.wait(LIMIT)
        ran.append(0)

    callbacks.run(wait)
    for index in range(1, 50):
        callbacks.run(partial(ran.append, index))
    callbacks.run(go.set)
    callbacks.close()
    assert [index for index in ran if index] == [*range(1, 50)]
    assert 0 in ran
