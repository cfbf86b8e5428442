"""Functions run one after another on a thread of their own."""

from __future__ import annotations

import threading

import pytest

from gradwire.errors import LinkError
from gradwire.sites.worker_thread import WorkerThread

LIMIT = 10.0


def test_functions_run_in_order_and_errors_reach_their_own_future() -> None:
    worker, ran = WorkerThread("worker"), list[int]()

    def fail() -> int:
        raise ValueError("no")

    futures = [worker.submit(lambda number=number: ran.append(number)) for number in range(2)]  # type: ignore[misc]
    failed = worker.submit(fail)
    futures.append(worker.submit(lambda: ran.append(2)))
    for future in futures:
        future.result(LIMIT)
    assert ran == [0, 1, 2]
    with pytest.raises(ValueError, match="no"):
        failed.result(LIMIT)
    worker.stop(LinkError("closed"))
    assert worker.join(LIMIT)


def test_a_stopped_thread_runs_what_was_submitted_before_and_refuses_the_rest() -> None:
    worker, go = WorkerThread("worker"), threading.Event()
    before = worker.submit(lambda: go.wait(LIMIT))
    worker.stop(LinkError("closed"))
    worker.stop(LinkError("closed again"))
    with pytest.raises(LinkError, match=r"^closed$"):
        worker.submit(lambda: None).result(0.0)
    assert not worker.join(0.01)
    go.set()
    assert before.result(LIMIT)
    assert worker.join(LIMIT)
