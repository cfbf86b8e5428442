"""Process: commands on the lab's hosts, started through a launcher, watched together, ended with their children."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

OnLine = Callable[[str, str], None]  # host, one line of output without its end
KILL_AFTER = 3.0


@dataclass(frozen=True, slots=True)
class HostResult:
    """The result of a command on one host."""

    host: str
    code: int
    seconds: float
    output: str
    ended_by_lab: bool = False


@dataclass(slots=True)
class HostProcess:
    """One running command; its launcher ends with this process, and the command with its launcher."""

    host: str
    process: subprocess.Popen[bytes]
    started: float
    ended: float | None = None
    ended_by_lab: bool = False
    tail: bytes = b""
    # The last lines only: a rank that logs for days must not fill the memory.
    output: deque[str] = field(default_factory=lambda: deque(maxlen=100_000))

    @classmethod
    def start(
        cls, host: str, prefix: Sequence[str], command: Sequence[str], env: Mapping[str, str] | None = None
    ) -> HostProcess:
        process = subprocess.Popen(
            [*prefix, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # The launcher compares it with its parent: the lab may have died before the launcher asked for a signal.
            env={**(os.environ if env is None else env), "GRADWIRE_LAB_PID": str(os.getpid())},
            start_new_session=True,
        )
        return cls(host, process, time.monotonic())

    def signal(self, number: int) -> None:
        """Send a signal to the command through its launcher; on SIGHUP the launcher kills everything at once."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    def take_lines(self, chunk: bytes) -> list[str]:
        """Complete lines so far; an empty chunk means the end and returns the rest."""
        self.tail += chunk
        *lines, self.tail = self.tail.split(b"\n")
        if not chunk and self.tail:
            lines.append(self.tail)
            self.tail = b""
        text = [line.decode(errors="replace").rstrip("\r") for line in lines]
        self.output += text
        return text

    def result(self) -> HostResult:
        ended = self.ended if self.ended is not None else time.monotonic()
        code = self.process.returncode
        return HostResult(self.host, code, ended - self.started, "\n".join(self.output), self.ended_by_lab)


class ProcessWatcher:
    """Reads the output of several processes and detects their ends, without threads."""

    def __init__(self, processes: Sequence[HostProcess], on_line: OnLine | None = None) -> None:
        self.processes: list[HostProcess] = []
        self._on_line = on_line
        self._selector = selectors.DefaultSelector()
        for entry in processes:
            self.add(entry)

    def add(self, entry: HostProcess) -> None:
        """Watch one more process."""
        assert entry.process.stdout is not None
        self.processes.append(entry)
        self._selector.register(entry.process.stdout, selectors.EVENT_READ, entry)

    def step(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for output and pass it on."""
        if not self._selector.get_map():
            time.sleep(min(timeout, 0.01))
        for key, _ in self._selector.select(timeout) if self._selector.get_map() else []:
            entry: HostProcess = key.data
            chunk = os.read(key.fd, 65536)
            for line in entry.take_lines(chunk):
                if self._on_line:
                    self._on_line(entry.host, line)
            if not chunk:
                self._selector.unregister(key.fileobj)
        for entry in self.processes:
            if entry.ended is None and entry.process.poll() is not None:
                entry.ended = time.monotonic()

    @property
    def running(self) -> list[HostProcess]:
        return [entry for entry in self.processes if entry.ended is None]

    @property
    def failed(self) -> list[HostProcess]:
        """Processes that failed and were not ended by the lab, in the order of their ends."""
        bad = [entry for entry in self.processes if entry.ended is not None and entry.process.returncode != 0]
        return sorted((entry for entry in bad if not entry.ended_by_lab), key=lambda entry: entry.ended or 0.0)

    def end_all(self, number: int = signal.SIGTERM, grace: float = KILL_AFTER) -> None:
        """Send signal `number`, after `grace` seconds kill. Returns when all processes have ended."""
        for step, wait in ((number, grace), (signal.SIGHUP, KILL_AFTER), (signal.SIGKILL, KILL_AFTER)):
            for entry in self.running:
                entry.ended_by_lab = True
                entry.signal(step)
            deadline = time.monotonic() + wait
            while self.running and time.monotonic() < deadline:
                self.step(0.05)
        self.drain()

    def drain(self) -> None:
        """Read what is still in the pipes."""
        deadline = time.monotonic() + 1.0
        while self._selector.get_map() and time.monotonic() < deadline:
            self.step(0.05)

    def close(self) -> None:
        self._selector.close()
        for entry in self.processes:
            if entry.process.stdout:
                entry.process.stdout.close()
