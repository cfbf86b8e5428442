"""StoreExchange over real stores, all ranks in one process: values arrive, missing ranks are named, junk is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import FileStore, HashStore

from gradwire.doctor.types import FlowResult
from gradwire.errors import LinkError
from gradwire.transport.bootstrap.rendezvous import RankAddress
from gradwire.transport.bootstrap.store_exchange import StoreExchange
from tests.fake_time import FakeTime


def on_every_rank(exchanges: list[StoreExchange], act: Callable[[StoreExchange], Any]) -> list[Any]:
    results: list[Any] = [None] * len(exchanges)

    def run(index: int) -> None:
        results[index] = act(exchanges[index])

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(len(exchanges))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    return results


def test_what_each_rank_publishes_all_ranks_read_in_order() -> None:
    store = HashStore()
    exchanges = [StoreExchange(store, rank, 3, 10) for rank in range(3)]
    values = on_every_rank(exchanges, lambda one: one.gather("flow", FlowResult(one.rank, 0, rate=1.5), FlowResult))
    assert values == [[FlowResult(rank, 0, rate=1.5) for rank in range(3)]] * 3


def test_ranks_pass_the_barrier_together_and_leave() -> None:
    store = HashStore()
    exchanges = [StoreExchange(store, rank, 3, 10) for rank in range(3)]
    on_every_rank(exchanges, lambda one: (one.barrier("round"), one.leave()))


def test_ranks_that_do_not_reach_the_barrier_are_named() -> None:
    store = HashStore()
    with pytest.raises(LinkError, match="ranks 1, 2 did not reach round-4"):
        StoreExchange(store, 0, 3, 0.2).barrier("round-4")
    with pytest.raises(LinkError, match="facts of rank 2, which did not get this far"):
        StoreExchange(store, 0, 3, 0.2).read("facts", 2, FlowResult)


def test_what_is_not_the_expected_json_is_refused() -> None:
    store = HashStore()
    store.set("facts/1", b"\x80\x04\x95pickle")
    with pytest.raises(LinkError, match="the facts of rank 1 cannot be read"):
        StoreExchange(store, 0, 2, 1).read("facts", 1, FlowResult)


@pytest.mark.parametrize("per_wait", [False, True])
def test_the_timeout_is_that_of_all_waits_together_or_of_each(per_wait: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    class WatchedStore(HashStore):
        def wait(self, keys: Any, timeout: Any) -> None:
            limits.append(timeout.total_seconds())

    exchange = StoreExchange(WatchedStore(), 0, 1, 10, per_wait=per_wait)
    clock = FakeTime()
    monkeypatch.setattr("gradwire.transport.bootstrap.store_exchange.time", clock)
    exchange._deadline = 10.0
    for clock.now in (0.0, 4.0, 50.0):
        exchange.gather("value", 1, int)
    exchange.barrier("end", extra=3.0)
    assert limits == ([10.0, 10.0, 10.0, 13.0] if per_wait else [10.0, 6.0, 0.05, 0.05])


def test_an_address_needs_nothing_but_its_fields() -> None:
    exchange = StoreExchange.open(HashStore(), "job", 0, 1)
    assert exchange.gather("address", RankAddress("::1", 5), RankAddress) == [RankAddress("::1", 5)]


def test_the_first_missing_rank_of_many_is_named(tmp_path: Path) -> None:
    for store in (HashStore(), FileStore(str(tmp_path / "store"), 1)):
        exchanges = {rank: StoreExchange.open(store, "job", rank, 4, timeout=0.2) for rank in range(4)}
        for rank in (2, 3):
            exchanges[rank].publish("site", str(rank))
        with pytest.raises(LinkError, match="site of rank 1"):
            exchanges[0].gather("site", "0", str)
        exchanges[1].publish("site", "1")
        assert exchanges[0].read_all("site", str) == ["0", "1", "2", "3"]


def test_a_wait_for_a_rank_that_is_gone_ends_at_the_first_look_and_asks_only_about_missing_ranks() -> None:
    store = HashStore()
    StoreExchange(store, 2, 3, 1).publish("answer", True)
    exchange, asked = StoreExchange(store, 0, 3, timeout=600), list[list[int]]()
    exchange.find_gone = lambda ranks: asked.append(list(ranks)) or {1}  # type: ignore[func-returns-value]
    with pytest.raises(LinkError, match="no answer from rank 1: its process ended"):
        exchange.gather("answer", True, bool)
    assert asked == [[1]]


def test_a_wait_for_a_rank_that_is_only_late_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwire.transport.bootstrap.store_exchange._FIRST_LOOK", 0.05)
    store = HashStore()
    exchange, late = StoreExchange(store, 0, 2, timeout=600), StoreExchange(store, 1, 2)
    looks: list[int] = []

    def find_gone(ranks: Sequence[int]) -> set[int]:
        looks.append(len(looks))
        if len(looks) == 3:
            late.publish("answer", False)
        return set()

    exchange.find_gone = find_gone
    assert exchange.gather("answer", True, bool) == [True, False]
    assert looks == [0, 1, 2]
    exchange = StoreExchange(HashStore(), 0, 2, timeout=0.2)
    exchange.find_gone = lambda ranks: set()
    with pytest.raises(LinkError, match="for the answer of rank 1, which did not get"):
        exchange.gather("answer", True, bool)
