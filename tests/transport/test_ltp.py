"""What LTP has beyond every wire's contract (tests/contract/test_wire.py): IPv6, both protections, restarted peers."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from gradwire.errors import ConfigError, LinkError
from gradwire.transport.wires.ltp import Contract, Endpoint, LtpConfig
from gradwire.types import Energies
from tests.tree.grid import ltp_wires

SECRET = b"0123456789abcdef0123456789abcdef"
LIMIT = 60.0


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("encrypt", [True, False])
def test_a_tensor_arrives_bit_for_bit(host: str, encrypt: bool) -> None:
    source = torch.randn(1_000_003)
    target = torch.full_like(source, float("nan"))
    with ltp_wires(2, LtpConfig(host=host, encrypt=encrypt)) as (a, b):
        inbound = b.post(0, target, tag=3)
        outbound = a.send(1, source, tag=3)
        delivery = inbound.wait(LIMIT)
        assert delivery.complete
        assert delivery.missing == ()
        assert outbound.wait(LIMIT).arrived == source.numel() * 4
    assert torch.equal(source, target)


CHILD = """
import sys
from gradwire.errors import LinkError
from gradwire.transport.wires.ltp import Endpoint, LtpConfig
config = LtpConfig(port=int(sys.argv[3]), keepalive=0.2, dead_after=20.0, connect_timeout=20.0)
end = Endpoint(1, bytes.fromhex(sys.argv[1]), config)
print(end.port, flush=True)
end.connect({0: ("127.0.0.1", int(sys.argv[2]))})
print("connected", flush=True)
try:
    end.receive(0, bytearray(1), timeout=60)
except LinkError as error:
    print(error, flush=True)
"""


@contextmanager
def child(parent: Endpoint, port: int = 0) -> Iterator[subprocess.Popen[str]]:
    """Rank 1 in a process of its own, at `port`; its first line of output is where it listens."""
    arguments = [sys.executable, "-c", CHILD, SECRET.hex(), str(parent.port), str(port)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=LIMIT)


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_restarted_peer_is_distinguished_from_a_silent_one() -> None:
    with Endpoint(0, SECRET, LtpConfig(keepalive=0.2, dead_after=20.0)) as a:
        with child(a) as first:
            port = int(read_line(first))
            a.connect({1: ("127.0.0.1", port)})
            waiting = a.post(1, bytearray(10))
        # The new process does not know the connection; its answer to a keepalive has another epoch.
        with child(a, port) as second:
            assert int(read_line(second)) == port
            with pytest.raises(LinkError, match="rank 1 was restarted"):
                waiting.wait(LIMIT)
            a.connect({1: ("127.0.0.1", port)})
            assert read_line(second) == "connected"


def test_a_peer_that_gave_the_connection_up_is_distinguished_from_a_restarted_one() -> None:
    with Endpoint(0, SECRET, LtpConfig(keepalive=0.2, dead_after=1.0)) as a, child(a) as process:
        a.connect({1: ("127.0.0.1", int(read_line(process)))})
        assert read_line(process) == "connected"
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(LinkError, match="rank 1 has been silent for too long"):
            a.post(1, bytearray(10)).wait(LIMIT)
        process.send_signal(signal.SIGCONT)
        assert read_line(process) == "rank 0 no longer has the connection that this rank has"


@pytest.mark.parametrize(
    ("contract", "message"),
    [
        (Contract(tolerance=0), "tolerance"),
        (Contract(record=5000), "record"),
        (Contract(critical=((90, 20),)), "critical"),
        (Contract(0.9, energies=Energies(0, 0, np.ones(1, np.float32))), "energies"),
        (Contract(0.9, energies=Energies(0, 4, np.ones(1, np.float64))), "energies"),
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
