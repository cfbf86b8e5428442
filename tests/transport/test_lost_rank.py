"""LostRankFinder: the first rank to notice probes all others and sends the result to those that notice later."""

from __future__ import annotations

import gc
import os
import socket
from threading import Thread

import msgspec
import pytest
from torch.distributed import HashStore

from gradwire.errors import IntegrityError, LinkError
from gradwire.fork import _VOIDS
from gradwire.transport import lost_rank
from gradwire.transport.bootstrap.store_exchange import StoreExchange
from gradwire.transport.lost_rank import ListenAddress, LostRankFinder, PeerAddresses, ProbeMessage, ProbeResult, probe
from tests.fake_time import FakeTime


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> list[LostRankFinder]:
    """Four ranks of one process, each on a host of its own name."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(lost_rank, "SECOND_PROBE", 0.0)
    store, ranks = HashStore(), [LostRankFinder() for _ in range(4)]
    opening = [
        Thread(target=one.open, args=(StoreExchange(store, rank, 4), f"host{rank}")) for rank, one in enumerate(ranks)
    ]
    for thread in opening:
        thread.start()
    for thread in opening:
        thread.join(30)
    assert not any(thread.is_alive() for thread in opening), "a rank was not opened within 30 s"
    return ranks


def test_an_error_begins_with_the_rank_and_host_that_are_gone(job: list[LostRankFinder]) -> None:
    job[1].close()
    error = job[0].explained(LinkError("AllToAll did not complete"))
    assert isinstance(error, LinkError)
    assert str(error).startswith("rank 1 on host1 is gone")
    assert str(error).endswith("(AllToAll did not complete)")


def test_a_late_rank_receives_the_first_result_and_does_not_blame_ranks_that_stopped_later(
    job: list[LostRankFinder],
) -> None:
    job[1].close()
    job[0].explained(LinkError("closed"))
    job[0].close()
    job[2].close()
    assert str(job[3].explained(LinkError("closed"))).startswith("rank 1 on host1 is gone")


def test_the_first_result_is_kept(job: list[LostRankFinder]) -> None:
    job[1].close()
    first = str(job[0].explained(LinkError("closed")))
    job[2].close()
    assert str(job[0].explained(LinkError("closed"))) == first


def test_an_error_is_unchanged_while_every_rank_is_alive_and_where_it_is_no_link_error(
    job: list[LostRankFinder],
) -> None:
    error = LinkError("no answer for 5 s")
    assert job[0].explained(error) is error
    job[1].close()
    corrupt = IntegrityError("replicas differ")
    assert job[2].explained(corrupt) is corrupt


def test_a_rank_that_a_new_process_runs_as_is_not_probed(job: list[LostRankFinder]) -> None:
    job[1].close()
    job[0].forget(1)
    error = LinkError("closed")
    assert job[0].explained(error) is error


def test_results_are_described_for_several_ranks_for_silence_and_for_no_answer_at_all() -> None:
    peers = PeerAddresses(0, {rank: ListenAddress(f"host{rank}", "127.0.0.1", 1) for rank in range(4)})
    assert peers.describe(ProbeResult((1, 3))).startswith("ranks 1 on host1 and 3 on host3 are gone")
    assert peers.describe(ProbeResult((), (2,))).startswith("rank 2 on host2 does not answer")
    assert peers.describe(ProbeResult((), (1, 2, 3))).startswith("none of the other ranks answers")
    assert peers.describe(ProbeResult((7, -1))) == ""
    assert peers.describe(ProbeResult()) == ""


def test_a_malformed_message_is_ignored(job: list[LostRankFinder]) -> None:
    at = job[0]._peers.by_rank[0]
    with socket.create_connection((at.address, at.port)) as hostile:
        hostile.send(b'{"refused": "everybody"')
    job[1].close()
    assert str(job[0].explained(LinkError("closed"))).startswith("rank 1 on host1 is gone")


def test_a_well_formed_message_without_the_jobs_token_is_ignored(job: list[LostRankFinder]) -> None:
    at = job[0]._peers.by_rank[0]
    with socket.create_connection((at.address, at.port)) as hostile:
        hostile.send(msgspec.json.encode(ProbeMessage("guessed", ProbeResult((3,)))))
    job[1].close()
    assert str(job[0].explained(LinkError("closed"))).startswith("rank 1 on host1 is gone")


def test_silent_strangers_do_not_add_up_their_delays(
    job: list[LostRankFinder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline is that of reading, not of each connection."""
    clock = FakeTime()
    monkeypatch.setattr(lost_rank, "time", clock)
    waits: list[float] = []

    class Stranger(socket.socket):
        def settimeout(self, value: float | None) -> None:
            waits.append(value or 0.0)

        def recv(self, *_: int) -> bytes:
            clock.now += waits[-1]
            raise TimeoutError

    class Listener:
        def accept(self) -> tuple[socket.socket, str]:
            return Stranger(), ""

    assert lost_rank._received(Listener(), "token") is None  # type: ignore[arg-type]
    assert sum(waits) == pytest.approx(lost_rank.PROBE_TIMEOUT)


def test_a_forked_child_does_not_keep_the_port_of_a_dead_process(job: list[LostRankFinder]) -> None:
    at = job[1]._peers.by_rank[1]
    (wakes, wake), (began, begin) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:  # as a DataLoader's worker does, it outlives its parent for a while
        os.write(begin, b"x")
        os.read(wakes, 1)
        os._exit(0)
    try:
        os.read(began, 1)
        job[1].close()
        found, _ = probe({1: (at.address, at.port)})
        assert found == ProbeResult((1,))
    finally:
        os.write(wake, b"x")
        os.waitpid(child, 0)


def test_a_rank_without_a_route_to_it_is_silent() -> None:
    """Linux has no TCP route to the broadcast address and says so at once, without sending anything."""
    found, reached = probe({1: ("255.255.255.255", 9)})
    assert found == ProbeResult((), (1,))
    assert not reached


def test_a_deleted_finder_leaves_nothing_to_do_for_forked_children(job: list[LostRankFinder]) -> None:
    assert set(job) <= set(_VOIDS)
    gone = id(job.pop())
    gc.collect()
    assert gone not in map(id, _VOIDS)
