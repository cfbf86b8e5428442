"""Rank agreement over a real store: ranks agree while their training threads wait for other keys."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import TCPStore

from gradwire.config import Config
from gradwire.runtime.rank_agreement import all_ranks
from gradwire.transport.lost_rank import LostRankFinder

LIMIT = timedelta(seconds=20)


class TwoRanks:
    group_name = "two"

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return 2


@pytest.mark.parametrize("other", [True, False])
def test_ranks_agree_while_a_training_thread_waits_for_the_store(other: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training thread of rank 0 waits for a key that is set when both ranks have agreed."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=LIMIT)
    by_rank = [TCPStore("127.0.0.1", server.port, is_master=False, timeout=LIMIT) for _ in range(2)]
    mine = threading.local()
    monkeypatch.setattr(dist.distributed_c10d, "_get_default_store", lambda: by_rank[mine.rank])
    answers: list[bool | None] = [None, None]

    def agree(rank: int) -> None:
        mine.rank = rank
        group: Any = TwoRanks(rank)
        answers[rank] = all_ranks(Config(), group, LostRankFinder())(other or rank == 0)

    training = threading.Thread(target=by_rank[0].wait, args=(["agreed"], LIMIT), daemon=True)
    ranks = [threading.Thread(target=agree, args=(rank,), daemon=True) for rank in range(2)]
    for thread in (training, *ranks):
        thread.start()
    for thread in ranks:
        thread.join(10)
    agreed = list(answers)
    server.set("agreed", "")
    for thread in (training, *ranks):
        thread.join(10)
    assert agreed == [other, other]
