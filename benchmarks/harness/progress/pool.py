"""Pool: works through runs, those in the ledger first, in one process or several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import as_completed
from functools import partial
from typing import Any

import torch

from harness.progress.ledger import Ledger
from harness.progress.reuse import repeated
from harness.progress.runs import Work
from harness.worker_processes import process_pool


def perform(works: Iterable[Work], ledger: Ledger, jobs: int = 1) -> Iterator[tuple[Work, dict[str, Any]]]:
    """Every work with its record, as they are finished; those in the ledger first."""
    waiting: list[Work] = []
    for work in works:
        found = ledger.get(work.settings, work.code) or repeated(work, ledger)
        if found is None:
            waiting.append(work)
        else:
            yield work, found
    if jobs == 1:
        torch.set_num_threads(1)
        for work in waiting:
            yield work, ledger.add(work.settings, work.code, work.run())
    elif waiting:
        with process_pool(jobs, partial(torch.set_num_threads, 1)) as pool:
            futures = {pool.submit(work.run): work for work in waiting}
            try:
                for future in as_completed(futures):
                    work = futures[future]
                    yield work, ledger.add(work.settings, work.code, future.result())
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
