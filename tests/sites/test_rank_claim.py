"""No two live processes run as the same rank, and a process that joins finds a rank that is free."""

from __future__ import annotations

import threading
import time

import pytest
from torch.distributed import HashStore, PrefixStore

from gradwire.errors import ConfigError, LinkError
from gradwire.sites import rank_claim
from gradwire.sites.rank_claim import LifeSigns, claim_rank, publish_places, take_free_rank


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_claim, "SILENCE", 0.3)
    monkeypatch.setattr(rank_claim, "STARTING", 0.6)
    monkeypatch.setattr(rank_claim, "POLL", 0.02)


class Process:
    """Another process, which runs as a rank and gives life signs until it dies."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: HashStore, name: str = "elsewhere/7") -> None:
        self._monkeypatch, self._store, self._name = monkeypatch, store, name
        self._dead = threading.Event()

    def runs_as(self, rank: int) -> None:
        self._sign = 0

        def live() -> None:
            while not self._dead.wait(0.05):
                self._sign += 1
                PrefixStore("gradwire/ranks", self._store).set(str(rank), f"{self._name} {self._sign}")

        self._thread = threading.Thread(target=live)
        self._thread.start()
        while not self._sign:
            time.sleep(0.01)

    def die(self) -> None:
        self._dead.set()
        self._thread.join()

    def claims(self, rank: int) -> None:
        with self._monkeypatch.context() as patch:
            patch.setattr(rank_claim, "_own_name", lambda: self._name)
            claim_rank(self._store, rank)


def test_a_rank_is_taken_while_its_process_lives_and_free_after_it_died(monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    other = Process(monkeypatch, store)
    other.runs_as(2)
    with pytest.raises(ConfigError, match="RANK is 2, and a live process runs as rank 2 of this job; give this"):
        claim_rank(store, 2)
    other.die()
    claim_rank(store, 2)


def test_a_rank_that_nobody_had_is_free_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_claim, "SILENCE", 100.0)
    claim_rank(HashStore(), 3)


def test_a_process_with_several_models_claims_its_rank_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_claim, "SILENCE", 100.0)
    store = HashStore()
    claim_rank(store, 3)
    LifeSigns(store, 3).give()
    claim_rank(store, 3)


def test_of_two_processes_that_claim_a_rank_at_once_the_second_gets_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    first = Process(monkeypatch, store)
    first.claims(3)
    later = threading.Timer(0.1, LifeSigns(store, 3).give)
    later.start()
    try:
        with pytest.raises(ConfigError, match="RANK is 3, and a live process runs as rank 3"):
            claim_rank(store, 3)
    finally:
        later.join()


def test_a_claim_whose_process_died_before_its_first_sign_is_void(monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    Process(monkeypatch, store).claims(3)
    claim_rank(store, 3)


def test_the_lowest_rank_that_is_free_is_taken_and_two_processes_take_two(monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    publish_places(store, 2, 5)
    alive, dead = Process(monkeypatch, store), Process(monkeypatch, store)
    alive.runs_as(0)
    dead.runs_as(1)
    dead.die()
    try:
        assert take_free_rank(store, 1.0) == (1, 2)
        claim_rank(store, 1)  # it is this process's
        monkeypatch.setattr(rank_claim, "_own_name", lambda: "elsewhere/8")
        assert take_free_rank(store, 1.0) == (2, 3)
    finally:
        alive.die()


def test_where_no_rank_is_free_or_no_job_runs_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    with pytest.raises(LinkError, match=r"no job that takes new processes \(waited 0.1 s\)"):
        take_free_rank(store, 0.1)
    publish_places(store, 1, 1)
    alive = Process(monkeypatch, store)
    alive.runs_as(0)
    try:
        with pytest.raises(LinkError, match=r"all 1 ranks of the job are in use.*planning.max_ranks"):
            take_free_rank(store, 0.1)
    finally:
        alive.die()
    PrefixStore("gradwire/ranks", store).set("places", "many")
    with pytest.raises(LinkError, match="does another program write to it"):
        take_free_rank(store, 0.1)
