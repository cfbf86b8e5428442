"""Runs one of torch's own distributed tests as one rank, in a process that lives on.

Torch starts fresh processes for every test, which costs seconds each. What `TestDistBackend._run` does per process is
repeated here: files for its barrier, a process group, the test, a last barrier. Torch's barrier over files
sleeps for 0.1 s between two looks, longer than most of the tests take; ours looks every few milliseconds.
"""

from __future__ import annotations

import functools
import os
import time
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any

BACKEND = "gradwire"
# Torch's tests ask by name what a backend can do. Ours takes gloo's place, with the tests written for gloo.
IN_PLACE_OF = "gloo"
TIMEOUT = 20.0
# Of the barrier over files; torch's own 10 s are few on a busy machine.
PATIENCE = 50.0


def names() -> list[str]:
    """All tests of torch's suite. Asked in the process of pytest, whose environment all other tests have too."""
    kept = dict(os.environ)
    try:
        return sorted(name for name in dir(_suite(2)) if name.startswith("test_"))
    finally:
        os.environ.clear()
        os.environ.update(kept)


def run(rank: int, world_size: int, name: str, folder: str, port: int) -> str:
    """ "passed", or why torch skips it. A store is served at `port`."""
    import torch.distributed as dist
    from torch.testing._internal import common_utils

    os.environ["TEMP_DIR"] = folder
    case = _suite(world_size)(name)
    from torch.testing._internal.distributed.distributed_test import CUSTOM_PG_TIMEOUT

    case.meeting = Meeting(folder, rank)
    case.rank, case.file_name = rank, str(Path(folder, "store"))
    timeout = timedelta(seconds=CUSTOM_PG_TIMEOUT.get(name, TIMEOUT))
    store = dist.PrefixStore(folder, client(port))
    store.set_timeout(timeout)
    dist.init_process_group(BACKEND, store=store, world_size=world_size, rank=rank, timeout=timeout)
    common_utils.set_rng_seed()
    try:
        getattr(case, name)()
        case._barrier()
    except unittest.SkipTest as skipped:
        return str(skipped)
    except SystemExit as ended:
        return _reason(ended.code)
    return "passed"


@functools.cache
def client(port: int) -> Any:
    """One connection for all tests: now and then torch takes five seconds to make one."""
    import torch.distributed as dist

    return dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=TIMEOUT))


def _reason(code: object) -> str:
    from torch.testing._internal.common_distributed import TEST_SKIPS

    return next((skip.message for skip in TEST_SKIPS.values() if skip.exit_code == code), f"exit code {code}")


def _suite(world_size: int) -> Any:
    os.environ.update(BACKEND=IN_PLACE_OF, WORLD_SIZE=str(world_size), MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

    def barrier(self: Any, wait_for: int | None = None, timeout: float = PATIENCE) -> None:
        import torch.distributed as dist

        self.meeting.attend(dist.get_world_size() if wait_for is None else wait_for, max(timeout, PATIENCE))

    return type("OnGradwire", (TestDistBackend, DistributedTest._DistTestBase), {"_barrier": barrier})


class Meeting:
    """Torch's barrier over files: each rank's file says at how many it has been."""

    def __init__(self, folder: str, rank: int) -> None:
        self._folder = Path(folder, "barrier")
        self._own = f"rank{rank}"
        self._attended = 0

    def attend(self, wait_for: int, timeout: float) -> None:
        self._attended += 1
        fresh = Path(self._folder.parent, self._own)
        fresh.write_text(str(self._attended))
        fresh.rename(self._folder / self._own)  # nobody reads half of it
        deadline = time.monotonic() + timeout
        while sum(int(file.read_text()) >= self._attended for file in self._folder.iterdir()) < wait_for:
            if time.monotonic() > deadline:
                raise RuntimeError("barrier timeout")
            time.sleep(0.003)
