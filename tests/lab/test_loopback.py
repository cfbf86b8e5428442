"""The mode without privileges: TCP is limited to the rate, the output names the mode, ports are checked first."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from gradwire.errors import ConfigError
from gradwire.lab import Lab
from gradwire.lab.loopback import listening_ports
from gradwire.network import Change, preset
from gradwire.units import Rate, Seconds
from tests.trials import Trial, decide

SEND = """
import os, socket, time
port, size = int(os.environ["MASTER_PORT"]), 8_000_000
if os.environ["RANK"] == "0":
    peer = socket.create_server(("127.0.0.1", port)).accept()[0]
    start, got = time.monotonic(), 0
    peer.sendall(b"g")
    while chunk := peer.recv(1 << 20):
        got += len(chunk)
    print(got / (time.monotonic() - start) * 8 / 1e6)
else:
    deadline = time.monotonic() + 20
    while True:
        try:
            peer = socket.create_connection(("127.0.0.1", port))
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    peer.recv(1)
    peer.sendall(bytes(size))
"""


@pytest.fixture(autouse=True)
def _runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_RUNTIME_DIR", str(tmp_path))


def test_tcp_is_slowed_to_the_hosts_rate_and_the_output_says_what_this_is() -> None:
    def trial(_: Trial) -> None:
        notes: list[str] = []
        with Lab(preset("lan100", 2), on_note=notes.append, mode="loopback") as lab:
            result = lab.run([sys.executable, "-c", SEND], timeout=60)
        assert result.code == 0
        assert any("loopback mode" in note for note in notes)
        assert "not for measurements" in result.stats.verdict
        assert float(result.hosts[0].output) == pytest.approx(94, rel=0.3)

    decide(trial)


def test_a_port_in_use_is_refused_when_asked_for_and_avoided_when_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert port in listening_ports()
        with Lab(preset("lan100", 2), mode="loopback") as lab:
            with pytest.raises(ConfigError, match=f"port: {port} is in use"):
                lab.run(["true"], port=port)
            assert lab.emulator.port(None) not in listening_ports()


def test_a_machine_without_a_free_port_is_an_error_that_names_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwire.lab.loopback.listening_ports", lambda: set(range(65536)))
    with Lab(preset("lan100", 2), mode="loopback") as lab, pytest.raises(ConfigError, match="give one with --port"):
        lab.emulator.port(None)


def test_links_cannot_be_changed_and_modes_are_checked() -> None:
    with Lab(preset("lan100", 2), mode="loopback") as lab, pytest.raises(ConfigError, match="cannot change links"):
        lab.apply(Change(Seconds(0), "*", Rate(1)))
    with pytest.raises(ConfigError, match="mode: unknown 'magic'; use one of"):
        Lab(preset("lan100", 2), mode="magic")  # type: ignore[arg-type]


def test_a_closed_lab_says_how_to_open_it() -> None:
    with pytest.raises(ConfigError, match="use it as a context manager"):
        Lab(preset("lan100", 2)).stats()


def test_no_command_is_refused() -> None:
    with Lab(preset("lan100", 2), mode="loopback") as lab, pytest.raises(ConfigError, match="no command"):
        lab.run([])


def test_gradwire_runs_in_it() -> None:
    """What a rank finds in its environment there is no setting, and no mistake either."""
    with Lab(preset("lan100", 2), mode="loopback") as lab:
        result = lab.run([sys.executable, "-c", "from gradwire.config import resolve; print(resolve().level)"])
    assert [host.output.strip() for host in result.hosts] == ["auto", "auto"]


def test_nothing_of_the_callers_environment_is_changed() -> None:
    before = dict(os.environ)
    with Lab(preset("lan100", 2), mode="loopback") as lab:
        lab.run(["true"])
    assert dict(os.environ) == before
