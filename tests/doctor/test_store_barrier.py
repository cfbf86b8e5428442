"""Meetings over a real store, all ranks in one process: facts arrive, absent ranks are named, garbage is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from torch.distributed import HashStore

from gradwire.doctor.store_barrier import VARIABLES, StoreBarrier
from gradwire.doctor.types import FlowResult
from gradwire.errors import ConfigError, LinkError


def everyone(meetings: list[StoreBarrier], act: Callable[[StoreBarrier], Any]) -> list[Any]:
    results: list[Any] = [None] * len(meetings)

    def run(index: int) -> None:
        results[index] = act(meetings[index])

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(meetings))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    return results


def test_what_each_rank_tells_all_ranks_hear_in_order() -> None:
    store = HashStore()
    meetings = [StoreBarrier(rank, 3, store, 10) for rank in range(3)]
    heard = everyone(meetings, lambda one: one.gather("flow", FlowResult(one.rank, 0, rate=1.5), FlowResult))
    assert heard == [[FlowResult(rank, 0, rate=1.5) for rank in range(3)]] * 3


def test_ranks_go_on_together_and_leave() -> None:
    store = HashStore()
    meetings = [StoreBarrier(rank, 3, store, 10) for rank in range(3)]
    everyone(meetings, lambda one: (one.together("round"), one.leave()))


def test_a_rank_that_does_not_come_is_named() -> None:
    store = HashStore()
    with pytest.raises(LinkError, match="rank 1, 2 did not come to round-4"):
        StoreBarrier(0, 3, store, 0.2).together("round-4")
    with pytest.raises(LinkError, match="rank 2 did not tell its facts"):
        StoreBarrier(0, 3, store, 0.2).hear("facts", 2, FlowResult)


def test_what_is_not_the_expected_json_is_refused() -> None:
    store = HashStore()
    store.set("facts/1", b"\x80\x04\x95pickle")
    with pytest.raises(LinkError, match="rank 1's facts cannot be read"):
        StoreBarrier(0, 2, store, 1).hear("facts", 1, FlowResult)


def test_without_torchrun_the_error_is_one_line_that_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set") as caught:
        StoreBarrier.join()
    assert "torchrun" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_rank_alone_has_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(VARIABLES, ("0", "1", "127.0.0.1", "29500"), strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="WORLD_SIZE is 1"):
        StoreBarrier.join()


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
        StoreBarrier.join()
