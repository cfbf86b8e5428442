"""The emulator process: started with a network, spoken to in lines, gone when its standard input closes.

It owns the namespaces of all hosts through descriptors; `host_prefix` is what runs a command inside one of them.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import time
from pathlib import Path

import msgspec

from gradwire.errors import ConfigError, IntegrityError
from gradwire.lab.emulator_config import address, change_values, compile_network, matching_links
from gradwire.lab.program import installed_program
from gradwire.lab.stats import EmulatorStats
from gradwire.network import Change, Network

START_TIMEOUT = 30.0
ANSWER_TIMEOUT = 10.0
DEFAULT_PORT = 29500


class NoPrivilegesError(ConfigError):
    """This machine lets us make neither namespaces nor user namespaces, or has no TUN device."""


class Emulator:
    """Owns the process; `close` ends it and with it every namespace that no other process is in."""

    mode = "namespaces"
    interface = "eth0"

    def __init__(self, network: Network) -> None:
        self.network = network
        self.hosts_file: Path | None = None  # shown to commands as /etc/hosts
        self._program = installed_program()
        lines = compile_network(network)
        # A session of its own: the terminal's Ctrl-C must not take the network away under the ranks.
        self._process = subprocess.Popen(
            [self._program, "emulate"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._buffer = b""
        try:
            self._send("\n".join([*lines, "start"]))
            self._read_ready()
        except BaseException:
            self.close()
            raise

    def _read_ready(self) -> None:
        answer = self._answer(START_TIMEOUT)
        words = answer.split()
        if not words or words[0] != "ok":
            reason = answer.removeprefix("error ")
            if "congestion" in reason:
                raise ConfigError(f"{reason.partition(';')[0]}; this machine has {', '.join(congestion_controls())}")
            raise NoPrivilegesError(
                f"lab: this machine does not let us make a network ({reason}); run as root, allow unprivileged "
                "user namespaces and access to /dev/net/tun, or use --mode loopback"
            )
        self.unprivileged = words[1] == "user"
        self._namespaces = words[2:]

    @property
    def pid(self) -> int:
        return self._process.pid

    def host_prefix(self, index: int) -> list[str]:
        """Put this before a command to run it in host number `index`."""
        user = f"/proc/{self.pid}/ns/user" if self.unprivileged else "-"
        network = f"/proc/{self.pid}/fd/{self._namespaces[index]}"
        return [str(self._program), "launch", network, user, str(self.hosts_file or "-"), "--"]

    def address(self, index: int) -> str:
        return address(index)

    def env(self, index: int) -> dict[str, str]:
        return {}

    def port(self, asked: int | None) -> int:
        """Every host has its own ports, so any is free."""
        return DEFAULT_PORT if asked is None else asked

    def begin(self) -> None:
        """Traces and scheduled changes start now, from the network's own values."""
        self._command("begin")

    def apply(self, change: Change) -> None:
        links = matching_links(self.network, change)
        if not links:
            raise ConfigError(f"change.link: {change.link!r} matches no link")
        values = change_values(change)
        for index in links:
            self._command(f"set {index} {values}")

    def check(self) -> None:
        """IntegrityError when the process has ended: without it no packet arrives any more."""
        if (code := self._process.poll()) is not None:
            raise IntegrityError(f"link emulator: ended with code {code} during the run; nothing was measured")

    def stats(self) -> EmulatorStats:
        self._send("stats")
        return msgspec.json.decode(self._answer(ANSWER_TIMEOUT), type=EmulatorStats)

    def _command(self, line: str) -> None:
        self._send(line)
        answer = self._answer(ANSWER_TIMEOUT)
        if answer != "ok":
            raise IntegrityError(f"link emulator: {answer} to {line!r}")

    def _send(self, text: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; reading its answer tells why
            self._process.stdin.write(text.encode() + b"\n")
            self._process.stdin.flush()

    def _answer(self, timeout: float) -> str:
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise IntegrityError(f"link emulator: no answer within {timeout:g} s")
                chunk = os.read(self._process.stdout.fileno(), 65536)
                if not chunk:
                    raise IntegrityError(f"link emulator: ended with code {self._process.wait()}")
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        if self._process.stdin and not self._process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()


def congestion_controls() -> list[str]:
    """TCP congestion controls that the kernel has now; root may load more (modprobe tcp_NAME)."""
    try:
        return sorted(Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split())
    except OSError:
        return ["cubic", "reno"]
