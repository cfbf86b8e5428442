"""Joining a doctor's job: wrong or missing variables are named in one line."""

from __future__ import annotations

import pytest

from gradwire.doctor.join import VARIABLES, join_job
from gradwire.errors import ConfigError


def test_without_torchrun_the_error_is_one_line_that_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set") as caught:
        join_job()
    assert "torchrun" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_rank_alone_has_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(VARIABLES, ("0", "1", "127.0.0.1", "29500"), strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="WORLD_SIZE is 1"):
        join_job()


@pytest.mark.parametrize(
    ("rank", "world_size", "says"),
    [("x", "2", "RANK is 'x', not a whole number"), ("0", "two", "WORLD_SIZE is 'two'"), ("2", "2", "RANK is 2 and")],
)
def test_variables_that_make_no_sense_are_named(
    rank: str, world_size: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in zip(VARIABLES, (rank, world_size, "127.0.0.1", "29500"), strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=says):
        join_job()
