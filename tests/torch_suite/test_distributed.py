"""Torch's own tests of its collectives and of DDP, run on gradwire groups.

Every test runs at world size 4, where torch skips the fewest; the collectives run at 2 and 3 as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torch_suite import worker
from tests.torch_suite.excluded import EXCLUDED
from tests.train.ranks import Ranks

NAMES = worker.names()
COLLECTIVES = re.compile(r"test_(all_|barrier|broadcast|gather|reduce|scatter|send_recv|isend|irecv)")
CASES = [(4, name) for name in NAMES] + [(size, name) for size in (2, 3) for name in NAMES if COLLECTIVES.match(name)]
ALIKE = frozenset({"passed"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("torch")


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    pool = Ranks("")
    yield pool
    pool.close()


def test_every_excluded_test_exists() -> None:
    assert set(EXCLUDED) <= set(NAMES)


@pytest.mark.parametrize(("world_size", "name"), [case for case in CASES if case[1] not in EXCLUDED])
def test_torch(ranks: Ranks, folder: Path, world_size: int, name: str) -> None:
    place = folder / f"{name}-{world_size}"
    for part in ("barrier", "test_dir", "init_dir"):
        (place / part).mkdir(parents=True)
    outcomes = set(ranks.run(world_size, worker.run, name, str(place), ranks.port, timeout=60))
    if outcomes != ALIKE:
        assert "passed" not in outcomes, outcomes
        pytest.skip(f"torch: {', '.join(sorted(outcomes))}")
