"""Closing: every part is closed once, whichever threads call close and however often."""

from __future__ import annotations

import threading

import pytest

from gradwire.closing import Closing


def test_a_second_thread_waits_until_the_first_has_closed_everything() -> None:
    inside, go_on, calls, errors = threading.Event(), threading.Event(), [], []

    def slow() -> None:
        calls.append("slow")
        inside.set()
        assert go_on.wait(30)

    closing = Closing(slow, lambda: calls.append("last"))
    seen: list[bool] = []

    def close() -> None:
        try:
            closing.close()
        except Exception as error:
            errors.append(error)
        seen.append(closing.done)

    first, second = (threading.Thread(target=close) for _ in range(2))
    first.start()
    assert inside.wait(30)
    second.start()
    second.join(0.05)
    assert second.is_alive(), "the second thread came back while the first was closing"
    go_on.set()
    for thread in (first, second):
        thread.join(30)
        assert not thread.is_alive()
    assert (calls, errors, seen) == (["slow", "last"], [], [True, True])


def test_a_closer_that_closes_the_whole_again_is_called_once() -> None:
    calls: list[str] = []

    def again() -> None:
        calls.append("again")
        closing.close()

    closing = Closing(again, lambda: calls.append("last"))
    closing.close()
    assert calls == ["again", "last"]
    assert closing.done


def test_what_raised_is_tried_again_and_what_is_closed_is_not() -> None:
    calls: list[str] = []

    def fails_once() -> None:
        calls.append("fails")
        if len(calls) == 1:
            raise OSError("busy")

    closing = Closing(fails_once, lambda: calls.append("closed"))
    with pytest.raises(OSError, match="busy"):
        closing.close()
    assert not closing.done
    closing.close()
    assert calls == ["fails", "closed", "fails"]
    assert closing.done
