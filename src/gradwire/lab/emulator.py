"""Emulator: the native process that emulates the links. It reads commands as lines and ends when its input closes.

It owns the namespaces of all hosts through descriptors; `host_prefix` runs a command inside one of them.
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
from gradwire.lab.dilation import Dilation
from gradwire.lab.emulator_config import address, change_values, compile_network, matching_links, own_address
from gradwire.lab.program import installed_program
from gradwire.lab.stats import EmulatorStats
from gradwire.network import Change, Network
from gradwire.network.dilate import dilated_change

START_TIMEOUT = 30.0
REPLY_TIMEOUT = 10.0
DEFAULT_PORT = 29500


class NoPrivilegesError(ConfigError):
    """This machine allows neither network nor user namespaces, or has no TUN device."""


class Emulator:
    """Owns the process; `close` ends it, and with it every namespace that no other process uses."""

    mode = "namespaces"
    interface = "eth0"

    def __init__(self, network: Network, dilation: Dilation | None = None) -> None:
        self.network = network
        self._dilation = dilation or Dilation()
        self.hosts_file: Path | None = None  # mounted for commands as /etc/hosts
        self._program = installed_program()
        lines = compile_network(network, self._dilation.factor, self._dilation.tcp_settings())
        # A separate session: the terminal's Ctrl-C must not end the network before the ranks.
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
        reply = self._reply(START_TIMEOUT)
        fields = reply.split()
        if not fields or fields[0] != "ok":
            reason = reply.removeprefix("error ")
            if "congestion" in reason:
                raise ConfigError(f"{reason.partition(';')[0]}; this machine has {', '.join(congestion_controls())}")
            if reason.startswith("ipv6"):
                raise ConfigError(f"{reason}; this machine's kernel has no IPv6: run the network without ipv6")
            if reason.startswith("tcp_"):
                raise ConfigError(
                    f"dilate: this machine refuses the setting {reason}; run as root, or without dilation"
                )
            raise NoPrivilegesError(
                f"lab: this machine does not allow network namespaces ({reason}); run as root, allow unprivileged "
                "user namespaces and access to /dev/net/tun, or use --mode loopback"
            )
        self.unprivileged = fields[1] == "user"
        self._namespaces = fields[2:]

    @property
    def pid(self) -> int:
        return self._process.pid

    def host_prefix(self, index: int) -> list[str]:
        """The arguments before a command that run it on host number `index`."""
        user = f"/proc/{self.pid}/ns/user" if self.unprivileged else "-"
        network = f"/proc/{self.pid}/fd/{self._namespaces[index]}"
        return [str(self._program), "launch", network, user, str(self.hosts_file or "-"), "--"]

    def address(self, index: int) -> str:
        return address(index, self.network.ipv6)

    def own_address(self, index: int) -> str:
        """The address of the host's own interface, which is not `address` behind a NAT."""
        return own_address(self.network, index)

    def forget_mappings(self, index: int) -> None:
        """Restart the router in front of a host."""
        self._command(f"forget {index}")

    def env(self, index: int) -> dict[str, str]:
        return {}

    def port(self, requested: int | None) -> int:
        """Every host has its own ports, so any port is free."""
        return DEFAULT_PORT if requested is None else requested

    def begin(self) -> None:
        """Reset all links to the network's values and start traces and scheduled changes."""
        self._command("begin")

    def apply(self, change: Change) -> None:
        links = matching_links(self.network, change)
        if not links:
            raise ConfigError(f"change.link: {change.link!r} matches no link; see `gradwire lab show`")
        values = change_values(dilated_change(change, self._dilation.factor))
        for index in links:
            self._command(f"set {index} {values}")

    def check(self) -> None:
        """IntegrityError if the process has ended: without it no packet arrives."""
        if (code := self._process.poll()) is not None:
            raise IntegrityError(f"link emulator: ended with code {code}; its results are invalid, repeat the run")

    def stats(self) -> EmulatorStats:
        self._send("stats")
        stats = msgspec.json.decode(self._reply(REPLY_TIMEOUT), type=EmulatorStats)
        return msgspec.structs.replace(stats, dilate=self._dilation.factor)

    def _command(self, line: str) -> None:
        self._send(line)
        reply = self._reply(REPLY_TIMEOUT)
        if reply != "ok":
            raise IntegrityError(f"link emulator: replied {reply!r} to {line!r}")

    def _send(self, text: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; reading its reply gives the reason
            self._process.stdin.write(text.encode() + b"\n")
            self._process.stdin.flush()

    def _reply(self, timeout: float) -> str:
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise IntegrityError(
                        f"link emulator: no reply within {timeout:g} s; repeat the run when the machine is less busy"
                    )
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
    """TCP congestion controls of the running kernel; root can load more (modprobe tcp_NAME)."""
    try:
        return sorted(Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split())
    except OSError:
        return ["cubic", "reno"]
