"""How many ranks a job may grow to is checked where it starts."""

from __future__ import annotations

import pytest

from gradwire.errors import ConfigError
from gradwire.sites.setup import check_may_grow


def test_a_job_cannot_grow_to_fewer_ranks_than_it_has() -> None:
    with pytest.raises(ConfigError, match=r"planning.max_ranks: 2 is less than the 3 ranks of the start"):
        check_may_grow(2, 3)


@pytest.mark.parametrize(("max_ranks", "world_size"), [(0, 1), (0, 3), (3, 3), (8, 1)])
def test_a_job_may_grow_to_more(max_ranks: int, world_size: int) -> None:
    check_may_grow(max_ranks, world_size)
