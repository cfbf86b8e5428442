"""Fixtures that several rooms' tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.train.ranks import Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Worker processes that act as the ranks of a job."""
    pool = Ranks()
    yield pool
    pool.close()
