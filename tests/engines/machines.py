"""Machines: the hosts of a lab as the machines of a cluster, with names of their own, daemons and commands.

A daemon writes to a file. `crash` kills everything on a machine at once; `close` ends the rest. All processes descend
from the lab's launchers, so nothing outlives this process, also if it is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gradwire.lab import Lab
from gradwire.lab.process import HostProcess

# Seconds that daemons have to end after SIGTERM, and the launchers to kill what is left.
GRACE = 3.0
# The host's name, as on a machine of its own; then the command, in its place.
NAMED = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"']
LOGGED = ["sh", "-c", 'exec "$@" >"$0" 2>&1']


class Machines:
    """Owns the daemons on the hosts of an open lab. `environment` is that of every daemon and command."""

    def __init__(self, lab: Lab, logs: Path, environment: Mapping[str, str]) -> None:
        self.lab = lab
        self._logs = logs
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GRADWIRE_")}
        path = f"{Path(sys.executable).parent}:{kept['PATH']}"
        own = {"PATH": path, "GLOO_SOCKET_IFNAME": lab.emulator.interface, "OMP_NUM_THREADS": "1"}
        self._environment = {**kept, **own, **environment}
        self._daemons: list[HostProcess] = []

    def start(self, host: str, command: Sequence[str]) -> None:
        """Start a daemon; its output goes to `host`-`program`.log."""
        log = self._logs / f"{host}-{Path(command[0]).name}.log"
        self._daemons.append(self.lab.spawn(host, [*NAMED, host, *LOGGED, str(log), *command], self._environment))

    def run(self, host: str, command: Sequence[str], timeout: float, **environment: str) -> str:
        """The command's output; AssertionError with it if the command fails, TimeoutExpired after `timeout` seconds."""
        process = self.lab.spawn(host, [*NAMED, host, *command], {**self._environment, **environment}).process
        try:
            output = process.communicate(timeout=timeout)[0].decode(errors="replace")
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGHUP)
                process.communicate()
        assert process.returncode == 0, f"{' '.join(command)} ended with {process.returncode}\n{output}"
        return output

    def crash(self, host: str) -> None:
        """Kill every daemon of a machine and all that it started, at once."""
        lost = [daemon for daemon in self._daemons if daemon.host == host]
        assert lost, f"nothing runs on {host}"
        _end(lost, signal.SIGHUP)
        self._daemons = [daemon for daemon in self._daemons if daemon.host != host]

    def logs(self, last: int = 2000) -> str:
        """The end of every log, for the message of a failed test."""
        return "\n".join(
            f"== {log.name}\n{log.read_text(errors='replace')[-last:]}" for log in self._logs.glob("*.log")
        )

    def close(self) -> None:
        """End all daemons, by force where one does not end by itself."""
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
            if _end(self._daemons, number):
                break
        self._daemons = []


def wait_until(condition: Callable[[], bool], timeout: float, failure: Callable[[], str]) -> None:
    """Ask every 0.1 s; AssertionError with `failure()` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {failure()}"
        time.sleep(0.1)


def _end(daemons: Sequence[HostProcess], number: int) -> bool:
    """Send a signal through the launchers; whether all ended within GRACE."""
    deadline = time.monotonic() + GRACE
    for daemon in daemons:
        daemon.signal(number)
    for daemon in daemons:
        try:
            daemon.process.wait(max(0.01, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
    for daemon in daemons:
        if daemon.process.stdout:
            daemon.process.stdout.close()
    return True
