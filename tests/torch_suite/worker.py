"""Runs one of torch's own distributed tests as one rank, in a process that lives on.

Torch starts fresh processes for every test, which costs seconds each. What `TestDistBackend._run` does per process is
repeated here: files for its barrier, a process group over a file, the test, a last barrier.
"""

from __future__ import annotations

import os
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any

BACKEND = "gradwire"
# Torch's tests ask by name what a backend can do. Ours takes gloo's place, with the tests written for gloo.
IN_PLACE_OF = "gloo"
TIMEOUT = 20.0
# Of torch's barrier over files, before and after a test; its own 10 s are few on a busy machine.
PATIENCE = 50.0


def names() -> list[str]:
    """All tests of torch's suite."""
    return sorted(name for name in dir(_suite(2)) if name.startswith("test_"))


def run(rank: int, world_size: int, name: str, folder: str) -> str:
    """ "passed", or why torch skips it."""
    import torch.distributed as dist
    from torch.testing._internal import common_utils

    os.environ["TEMP_DIR"] = folder
    case = _suite(world_size)(name)
    from torch.testing._internal.distributed.distributed_test import CUSTOM_PG_TIMEOUT, Barrier

    Barrier.barrier_id = 0
    case.rank, case.file_name = rank, str(Path(folder, "store"))
    timeout = timedelta(seconds=CUSTOM_PG_TIMEOUT.get(name, TIMEOUT))
    dist.init_process_group(BACKEND, init_method=case.init_method, world_size=world_size, rank=rank, timeout=timeout)
    case._barrier(timeout=PATIENCE)
    common_utils.set_rng_seed()
    try:
        getattr(case, name)()
        case._barrier(timeout=PATIENCE)
    except unittest.SkipTest as skipped:
        return str(skipped)
    except SystemExit as ended:
        return _reason(ended.code)
    return "passed"


def _reason(code: object) -> str:
    from torch.testing._internal.common_distributed import TEST_SKIPS

    return next((skip.message for skip in TEST_SKIPS.values() if skip.exit_code == code), f"exit code {code}")


def _suite(world_size: int) -> Any:
    os.environ.update(BACKEND=IN_PLACE_OF, WORLD_SIZE=str(world_size), MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend

    return type("OnGradwire", (TestDistBackend, DistributedTest._DistTestBase), {})
