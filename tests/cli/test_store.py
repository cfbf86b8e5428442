"""`gradwire store`: serves until it is stopped, on the given address only."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from gradwire import init_process_group
from gradwire.cli.store import listen
from gradwire.errors import ConfigError, LinkError

COMMAND = [sys.executable, "-m", "gradwire", "store", "--port", "0"]


@pytest.fixture
def served() -> Iterator[tuple[subprocess.Popen[str], str]]:
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
        process.kill()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_store_serves_until_it_is_stopped(served: tuple[subprocess.Popen[str], str], stop: signal.Signals) -> None:
    process, place = served
    host, port = place.split(":")
    writer = TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=30))
    writer.set("key", "value")
    del writer  # what a rank wrote stays when the rank is gone
    assert TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=30)).get("key") == b"value"
    process.send_signal(stop)
    assert process.wait(60) == 0


def test_a_taken_port_and_an_address_of_another_host_are_named() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(ConfigError, match="cannot listen"):
        listen("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(ConfigError, match=r"192\.0\.2\.1"):
        listen("192.0.2.1", 0)


@pytest.mark.parametrize("text", ["nowhere", "host:port", ":"])
def test_a_store_that_is_no_address_is_named(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_STORE", text)
    with pytest.raises(ConfigError, match=f"GRADWIRE_STORE={text}: write host:port"):
        init_process_group("gloo", rank=0, world_size=1)


def test_a_store_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    monkeypatch.setenv("GRADWIRE_STORE", f"127.0.0.1:{port}")
    with pytest.raises(LinkError, match="no store answers"):
        init_process_group("gloo", rank=0, world_size=1, timeout=timedelta(seconds=1))
