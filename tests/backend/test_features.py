"""What torch builds on a process group works on gradwire's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.backend import features
from tests.train.ranks import Ranks


@pytest.fixture(scope="module")
def ours(ranks: Ranks) -> Ranks:
    return ranks.on("gradwire")


@pytest.mark.parametrize("job", features.JOBS, ids=lambda job: job.__name__)
def test_a_gradwire_group_runs(ours: Ranks, job: Any) -> None:
    ours.run(4, job)


def test_checkpoints_are_saved_at_once_and_later_and_loaded(ours: Ranks, tmp_path: Path) -> None:
    ours.run(4, features.checkpoints, str(tmp_path))
