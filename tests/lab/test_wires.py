"""The backend's wire between hosts: TCP if every path is short, LTP if one is long."""

from __future__ import annotations

import sys

import pytest

from gradwire.lab import Lab
from tests.lab.conftest import pair
from tests.trials import Trial, decide

SUM = """
import logging, torch, torch.distributed as dist
logging.basicConfig(level=logging.INFO, format="%(message)s")
dist.init_process_group("gradwire")
ones = torch.ones(100_000)
dist.all_reduce(ones)
assert torch.equal(ones, torch.full_like(ones, 2.0))
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("one_way_ms", "way"), [(0.1, "TCP to rank 1"), (10, "LTP to rank 1")])
def test_the_length_of_the_paths_chooses_the_wire(one_way_ms: float, way: str) -> None:
    def trial(run: Trial) -> None:
        with Lab(pair(100, one_way_ms)) as lab:
            result = lab.run([sys.executable, "-c", SUM], timeout=60)
        run.saw(result.stats)
        assert result.code == 0, result.hosts[0].output
        assert way in result.hosts[0].output

    decide(trial)
