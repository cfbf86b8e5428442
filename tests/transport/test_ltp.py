"""LTP endpoints on loopback: transfers, contracts, and failures that say what happened. Every wait has a deadline."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import torch

from gradwire.errors import ConfigError, LinkError
from gradwire.transport.ltp import Contract, Endpoint, LtpConfig

SECRET = b"0123456789abcdef0123456789abcdef"
LIMIT = 60.0


@contextmanager
def mesh(count: int, config: LtpConfig | None = None) -> Iterator[list[Endpoint]]:
    with ExitStack() as stack:
        ends = [stack.enter_context(Endpoint(rank, SECRET, config)) for rank in range(count)]
        # Addresses first, then wait: both sides of a pair must have been told.
        for end in ends:
            for other in ends:
                if other is not end:
                    end.loop.connect(other.rank, end.config.host, other.port)
        for end in ends:
            for other in ends:
                if other is not end:
                    assert end.loop.wait_connected(other.rank, LIMIT) == "connected"
        yield ends


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("encrypt", [True, False])
def test_a_tensor_arrives_bit_for_bit(host: str, encrypt: bool) -> None:
    source = torch.randn(1_000_003)
    target = torch.full_like(source, float("nan"))
    with mesh(2, LtpConfig(host=host, encrypt=encrypt)) as (a, b):
        inbound = b.post(0, target, tag=3)
        outbound = a.send(1, source, tag=3)
        delivery = inbound.wait(LIMIT)
        assert delivery.complete
        assert delivery.missing == ()
        assert outbound.wait(LIMIT).arrived == source.numel() * 4
    assert torch.equal(source, target)


def test_transfers_cross_in_a_mesh_and_are_paired_by_tag() -> None:
    size = 40_000
    with mesh(3) as ends:
        sends, receives, boxes = [], [], {}
        for a in ends:
            for b in ends:
                if a is b:
                    continue
                for tag in range(4):
                    boxes[a.rank, b.rank, tag] = bytearray(size)
                    receives.append(b.post(a.rank, boxes[a.rank, b.rank, tag], tag=tag))
                for tag in reversed(range(4)):
                    sends.append(a.send(b.rank, bytes([1 + a.rank * 16 + b.rank * 4 + tag]) * size, tag=tag))
        for transfer in sends + receives:
            assert transfer.wait(LIMIT).complete
        for (source, target, tag), box in boxes.items():
            assert box == bytes([1 + source * 16 + target * 4 + tag]) * size


def test_data_sent_before_the_receive_is_posted_waits_for_it() -> None:
    with mesh(2, LtpConfig(credit=100_000)) as (a, b):
        small, large = a.send(1, b"s" * 50_000, tag=1), a.send(1, b"l" * 500_000, tag=2)
        assert small.wait(LIMIT).complete
        assert not large.done
        box = bytearray(500_000)
        assert b.receive(0, box, tag=2, timeout=LIMIT).complete
        assert box == b"l" * 500_000
        box = bytearray(50_000)
        assert b.receive(0, box, tag=1, timeout=LIMIT).complete
        assert box == b"s" * 50_000


def test_a_buffer_too_small_is_refused_and_both_sides_know() -> None:
    with mesh(2) as (a, b):
        inbound = b.post(0, bytearray(10))
        outbound = a.send(1, b"x" * 1000)
        assert inbound.wait(LIMIT).reason == "refused"
        assert outbound.wait(LIMIT).missing == ((0, 1000),)


def test_a_receive_nobody_serves_times_out_and_is_withdrawn() -> None:
    with mesh(2) as (a, b):
        with pytest.raises(TimeoutError):
            b.receive(0, bytearray(100), tag=9, timeout=0.05)
        assert not b.pending
        box = bytearray(100)
        inbound = b.post(0, box, tag=9)
        a.send(1, b"y" * 100, tag=9).wait(LIMIT)
        assert inbound.wait(LIMIT).complete
        assert box == b"y" * 100


def test_closing_one_side_fails_the_other_sides_transfers() -> None:
    with mesh(2) as (a, b):
        inbound = b.post(0, bytearray(100))
        a.close()
        with pytest.raises(LinkError, match="rank 0 has closed the connection"):
            inbound.wait(LIMIT)
        with pytest.raises(LinkError, match="rank 0 has closed"):
            b.send(0, b"late").wait(LIMIT)


def test_closing_ends_a_wait_in_another_thread() -> None:
    end = Endpoint(0, SECRET)
    end.loop.connect(1, "127.0.0.1", 9)
    inbound = end.post(1, bytearray(10))
    closer = threading.Timer(0.1, end.close)
    closer.start()
    with pytest.raises(LinkError, match="closed"):
        inbound.wait(LIMIT)
    closer.join(LIMIT)


def test_different_secrets_are_named_as_such() -> None:
    config = LtpConfig(connect_timeout=1.0)
    with Endpoint(0, SECRET, config) as a, Endpoint(1, b"another secret, also long", config) as b:
        b.loop.connect(0, "127.0.0.1", a.port)
        with pytest.raises(LinkError, match="fail authentication"):
            a.connect({1: ("127.0.0.1", b.port)})
        assert a.counters()["authentication_failed"] > 0


def test_nobody_there_is_named_as_such() -> None:
    with Endpoint(0, SECRET, LtpConfig(connect_timeout=0.3)) as a:
        port = Endpoint(1, SECRET)
        port.close()
        with pytest.raises(LinkError, match="does not answer"):
            a.connect({1: ("127.0.0.1", port.port)})


def test_two_processes_of_one_rank_are_told_apart() -> None:
    config = LtpConfig(connect_timeout=1.0, keepalive=0.2)
    claimed = pytest.raises(LinkError, match="two processes claim it")
    with mesh(2, config) as (_, b), Endpoint(0, SECRET, config) as twin, claimed:
        twin.connect({1: ("127.0.0.1", b.port)})


def test_a_peer_never_connected_to_is_a_link_error() -> None:
    with Endpoint(0, SECRET) as a:
        for transfer in (a.send(5, b"x"), a.post(5, bytearray(1))):
            with pytest.raises(LinkError, match="rank 5 does not answer"):
                transfer.wait(LIMIT)


CHILD = """
import sys
from gradwire.transport.ltp import Endpoint, LtpConfig
end = Endpoint(1, bytes.fromhex(sys.argv[1]), LtpConfig(keepalive=0.2, dead_after=float(sys.argv[3])))
print(end.port, flush=True)
end.connect({0: ("127.0.0.1", int(sys.argv[2]))})
box = bytearray(4_000_000)
print(end.receive(0, box, timeout=60).complete, flush=True)
"""


@contextmanager
def child(parent: Endpoint, dead_after: float) -> Iterator[subprocess.Popen[str]]:
    arguments = [sys.executable, "-c", CHILD, SECRET.hex(), str(parent.port), str(dead_after)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        parent.connect({1: ("127.0.0.1", int(process.stdout.readline()))})
        yield process
    finally:
        process.kill()
        process.wait(LIMIT)
        assert process.stdout is not None
        process.stdout.close()


def test_a_paused_peer_is_waited_for() -> None:
    with Endpoint(0, SECRET, LtpConfig(keepalive=0.2, dead_after=20.0)) as a, child(a, 20.0) as process:
        process.send_signal(signal.SIGSTOP)
        outbound = a.send(1, os.urandom(4_000_000))
        with pytest.raises(TimeoutError):
            outbound.wait(1.5)
        process.send_signal(signal.SIGCONT)
        assert outbound.wait(LIMIT).complete


def test_a_killed_peer_is_a_link_error() -> None:
    with Endpoint(0, SECRET, LtpConfig(keepalive=0.2, dead_after=1.0)) as a, child(a, 20.0) as process:
        process.kill()
        with pytest.raises(LinkError, match="silent for too long"):
            a.post(1, bytearray(10)).wait(LIMIT)


def test_statistics_describe_the_link() -> None:
    with mesh(2) as (a, b):
        box = np.zeros(2_000_000, dtype=np.float32)
        inbound = b.post(0, box)
        a.send(1, np.ones(2_000_000, dtype=np.float32)).wait(LIMIT)
        assert inbound.wait(LIMIT).complete
        link = a.stats()[1]
        assert link["bytes_acked"] >= 8_000_000
        assert 0 < link["rtprop"] < 1
        view = a.view(1)
        assert view.rtprop is not None
        assert view.loss < 0.5
        assert a.view(7).rtprop is None


@pytest.mark.parametrize(
    ("contract", "message"),
    [
        (Contract(tolerance=0), "tolerance"),
        (Contract(record=5000), "record"),
        (Contract(critical=((90, 20),)), "critical"),
        (Contract(element=0), "element"),
    ],
)
def test_contracts_that_cannot_be_kept_are_refused_at_the_edge(contract: Contract, message: str) -> None:
    with Endpoint(0, SECRET) as a, pytest.raises(ConfigError, match=message):
        a.send(1, b"x" * 100, contract)


def test_settings_that_make_no_sense_are_named() -> None:
    with pytest.raises(ConfigError, match="dead_after"):
        LtpConfig(keepalive=1, dead_after=1)
    with pytest.raises(ConfigError, match="secret"):
        Endpoint(0, b"short")
    with pytest.raises(ConfigError, match="cannot listen"):
        Endpoint(0, SECRET, LtpConfig(host="203.0.113.1"))
    with Endpoint(0, SECRET) as a, pytest.raises(ConfigError, match="resolve host names"):
        a.connect({1: ("localhost", 1)})
