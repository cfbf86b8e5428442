"""The ranks of a site that lost a rank agree on who is left."""

from __future__ import annotations

import threading

import pytest
from torch.distributed import HashStore

from gradwire.errors import LinkError
from gradwire.sites.failover_store import FailoverStore

LIMIT = 10.0


def test_a_dead_rank_is_not_waited_for_and_a_live_one_is() -> None:
    store = HashStore()
    quick = FailoverStore(store, "b", 1000.0, LIMIT, lambda ranks: ({3}, set()))
    assert quick.survivors([3, 5], 5, 1) == [5]
    slow = FailoverStore(store, "c", 0.0, 1000.0, lambda ranks: (set(), {7}))
    lists: list[list[int]] = []
    waiting = threading.Thread(target=lambda: lists.append(slow.survivors([5, 7], 5, 1)), daemon=True)
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive(), "a live rank was left out"
    assert slow.survivors([5, 7], 7, 1) == [5, 7]
    waiting.join(LIMIT)
    assert lists == [[5, 7]]


def test_all_ranks_that_are_left_get_the_same_list() -> None:
    store, lists = HashStore(), dict[int, list[int]]()
    failover = FailoverStore(store, "a", 0.5, LIMIT)
    threads = [
        threading.Thread(target=lambda rank=rank: lists.update({rank: failover.survivors([3, 5, 7], rank, 1)}))  # type: ignore[misc]
        for rank in (5, 7)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert lists == {5: [5, 7], 7: [5, 7]}
    with pytest.raises(LinkError, match="too late"):
        failover.survivors([3, 5, 7], 3, 1)
