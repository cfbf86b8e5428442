"""Worker processes: a pool whose workers end with the process that started them, also if that is killed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context, parent_process


def process_pool(jobs: int, prepare: Callable[[], None]) -> ProcessPoolExecutor:
    """`jobs` new interpreters; each calls `prepare` first."""
    return ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (prepare,))


def _begin(prepare: Callable[[], None]) -> None:
    threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()
    prepare()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
