"""Cross traffic: iperf3 flows between hosts of a running lab, each with a start and a stop."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from gradwire.errors import ConfigError
from gradwire.lab.process import HostProcess, ProcessWatcher
from gradwire.network import CrossTraffic

if TYPE_CHECKING:
    from collections.abc import Iterable

FIRST_PORT = 5300
# Seconds between attempts: a client that starts before its server listens fails at once.
RETRY_AFTER = 0.3


class Hosts(Protocol):
    """The part of a Lab that cross traffic uses."""

    def spawn(self, host: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> HostProcess: ...
    def address(self, host: str) -> str: ...


def require_tool(name: str, package: str, purpose: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise ConfigError(f"lab: {purpose} needs {name}, which is not installed; apt-get install {package}")
    return path


class CrossFlows:
    """Owns the servers and clients of all flows; `step(now)` starts and stops those that are due."""

    def __init__(self, lab: Hosts, traffic: Iterable[CrossTraffic], start: float) -> None:
        self._lab = lab
        self._start = start
        self._entries = [_Flow(flow, FIRST_PORT + index) for index, flow in enumerate(traffic)]
        if self._entries:
            self._tool = require_tool("iperf3", "iperf3", "cross traffic")

    def step(self, now: float) -> None:
        for entry in self._entries:
            entry.step(self._lab, self._tool, now - self._start)

    def close(self) -> None:
        for entry in self._entries:
            entry.end()


class _Flow:
    def __init__(self, flow: CrossTraffic, port: int) -> None:
        self._flow = flow
        self._port = port
        self._watcher: ProcessWatcher | None = None
        self._next_attempt = float(flow.start)

    def step(self, lab: Hosts, tool: str, elapsed: float) -> None:
        if self._flow.stop is not None and elapsed >= self._flow.stop:
            self.end()
            return
        if self._watcher is not None:
            self._watcher.step(0.0)
            if self._watcher.running == self._watcher.processes:
                return
            self.end()
        if elapsed >= self._next_attempt:
            self._next_attempt = elapsed + RETRY_AFTER
            server = lab.spawn(self._flow.target, [tool, "-s", "-p", str(self._port)])
            client = lab.spawn(self._flow.source, ["sh", "-c", f"sleep 0.1; exec {' '.join(self._client(lab, tool))}"])
            self._watcher = ProcessWatcher([server, client])

    def _client(self, lab: Hosts, tool: str) -> list[str]:
        flow = self._flow
        arguments = [tool, "-c", lab.address(flow.target), "-p", str(self._port), "-t", "0", "-P", str(flow.flows)]
        if flow.protocol == "udp":
            arguments += ["-u", "-l", "1400"]
        elif flow.congestion:
            arguments += ["-C", flow.congestion]
        if flow.rate is not None:
            arguments += ["-b", f"{flow.rate.mbit:.3f}M"]
        return arguments

    def end(self) -> None:
        if self._watcher is not None:
            self._watcher.end_all(grace=0.5)
            self._watcher.close()
            self._watcher = None
