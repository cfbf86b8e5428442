"""Ranks compare their settings before anything is sent: a rank that differs is named on every rank."""

from __future__ import annotations

from torch.distributed import HashStore

from gradwire.errors import ConfigError
from gradwire.transport.bootstrap.config_check import difference, require_same_settings
from gradwire.transport.bootstrap.store_exchange import StoreExchange
from tests.transport.test_rendezvous import together


def check(versions: list[str]) -> list[object]:
    store, world = HashStore(), len(versions)

    def job(rank: int) -> None:
        require_same_settings(StoreExchange.open(store, "alike", rank, world, 20), {"version": versions[rank]})

    return together(world, job)


def test_equal_ranks_go_on() -> None:
    assert check(["1", "1", "1"]) == [None] * 3


def test_a_rank_that_differs_is_named_on_every_rank() -> None:
    for error in check(["1", "1", "2"]):
        assert isinstance(error, ConfigError)
        assert "version: rank 0 has 1, rank 2 has 2" in str(error)


def test_a_setting_that_one_rank_does_not_have_is_a_difference() -> None:
    assert "level: rank 0 has unknown, rank 1 has int8" in difference([{"v": "1"}, {"v": "1", "level": "int8"}])
    assert difference([{"v": "1"}, {"v": "1"}]) == ""
