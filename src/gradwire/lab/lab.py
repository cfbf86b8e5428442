"""Lab: a network that exists while its context is open, and commands that run on its hosts.

    with Lab(preset("lan100", hosts=4)) as lab:
        result = lab.run(["python", "train.py"])
        print(result.code, result.stats.verdict)

With `dilate`, time is stretched (lab/dilation.py); all times given and returned here are undilated.
Each rank gets torchrun's variables. `RunResult.stats` has the network's counters and whether the lab kept up.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Literal, Self

from gradwire.errors import ConfigError
from gradwire.lab.cross_traffic import CrossFlows
from gradwire.lab.dilation import Dilation
from gradwire.lab.emulator import Emulator, NoPrivilegesError
from gradwire.lab.interrupts import Interrupts
from gradwire.lab.loopback import LOOPBACK_LIMITS, LoopbackLab
from gradwire.lab.machine_load import MachineUse
from gradwire.lab.open_labs import LabRecord, remove_dead_labs
from gradwire.lab.process import HostProcess, HostResult, OnLine, ProcessWatcher
from gradwire.lab.stats import EmulatorStats
from gradwire.network import Change, Network, dilated

# Seconds that the other ranks may run after one failed, to report their own errors.
GRACE = 5.0
# Seconds after a normal end of one rank at which ranks that still run are reported.
STILL_RUNNING_AFTER = 15.0

OnNote = Callable[[str], None]
# auto: namespaces if the machine allows them, otherwise loopback with a note.
Mode = Literal["auto", "namespaces", "loopback"]
MODES: tuple[Mode, ...] = ("auto", "namespaces", "loopback")


@dataclass(frozen=True, slots=True)
class RunResult:
    """One command on all ranks: `code` is that of the first rank to fail, 0 if none failed.

    `seconds` are undilated; on this machine they took `dilate` times as long.
    """

    code: int
    seconds: float
    hosts: tuple[HostResult, ...]
    stats: EmulatorStats
    timed_out: bool = False
    stolen: float = 0.0  # cores that the hypervisor gave to other virtual machines; explains late packets
    others: float = 0.0  # cores that other programs and other virtual machines used; explains slow ranks
    dilate: float = 1.0


class Lab:
    """Creates the network on entering and removes everything on leaving.

    `dilate` is the factor by which its time is stretched; None takes the network's own.
    """

    def __init__(
        self,
        network: Network,
        on_note: OnNote | None = None,
        mode: Mode = "namespaces",
        dilate: float | None = None,
    ) -> None:
        if mode not in MODES:
            raise ConfigError(f"mode: unknown {mode!r}; use one of {', '.join(MODES)}")
        self.network = network
        self.dilation = Dilation(network.dilate if dilate is None else dilate)
        self._requested_mode = mode
        self._note = on_note or (lambda text: None)
        self._emulator: Emulator | LoopbackLab | None = None
        self._record: LabRecord | None = None

    def __enter__(self) -> Self:
        try:
            with Interrupts():
                self._open()
                return self
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        self._preload()  # fails before anything is open
        for leftover in remove_dead_labs():
            self._note(f"removed lab {leftover}, which was killed")
        self._emulator = self._make()
        self._record = LabRecord.create(self.network.name, self._emulator.pid, self._hosts_text())
        self._emulator.hosts_file = self._record.hosts_file
        if self.dilation.factor != 1 and "tcp_rto_min_us" not in self.dilation.tcp_settings():
            self._note("dilate: this kernel cannot stretch TCP's least retransmission timeout; Linux 6.11 can")
        if self._emulator.unprivileged:
            self._note("not root: running in an unprivileged user namespace, without real-time priority")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make(self) -> Emulator | LoopbackLab:
        if self._requested_mode == "loopback":
            self._note(LOOPBACK_LIMITS)
            return LoopbackLab(dilated(self.network, self.dilation.factor))
        try:
            return Emulator(self.network, self.dilation)
        except NoPrivilegesError as error:
            if self._requested_mode != "auto":
                raise
            self._note(str(error).removeprefix("lab: "))
            self._note(LOOPBACK_LIMITS)
            return LoopbackLab(dilated(self.network, self.dilation.factor))

    def close(self) -> None:
        with Interrupts():
            if self._emulator:
                self._emulator.close()
                self._emulator = None
            if self._record:
                self._record.remove()
                self._record = None

    @property
    def mode(self) -> str:
        """How the network is made: "namespaces" is a real network, "loopback" only limits TCP's rate."""
        return self.emulator.mode

    @property
    def emulator(self) -> Emulator | LoopbackLab:
        if self._emulator is None:
            raise ConfigError("lab: not open; use it as a context manager: with Lab(network) as lab: ...")
        return self._emulator

    def _hosts_text(self) -> str:
        lines = [f"{self.emulator.address(index)} {host.name}" for index, host in enumerate(self.network.hosts)]
        lines += [
            f"{self.emulator.own_address(i)} {host.name}.lan" for i, host in enumerate(self.network.hosts) if host.nat
        ]
        if not self.network.ipv6:
            lines += [f"::ffff:{line}" for line in lines]  # torch's store looks these up
        return "\n".join(["127.0.0.1 localhost", "::1 localhost", *lines]) + "\n"

    def address(self, host: str) -> str:
        return self.emulator.address(self._index(host))

    def forget_mappings(self, host: str) -> None:
        """Restart the router in front of a host: its NAT forgets all mappings but forwarded ports."""
        index = self._index(host)
        if self.network.hosts[index].nat is None:
            raise ConfigError(f"nat: {host} is behind none; give it one: nat = {{ kind = 'symmetric' }}")
        self.emulator.forget_mappings(index)

    def apply(self, change: Change) -> None:
        """Change links now (`change.at` is ignored); lasts until the next change, also across runs."""
        self.emulator.apply(change)

    def stats(self) -> EmulatorStats:
        return self.emulator.stats()

    def spawn(self, host: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> HostProcess:
        """Start a command on one host; the caller watches and ends it."""
        return HostProcess.start(host, self.emulator.host_prefix(self._index(host)), command, env)

    def rank_env(self, rank: int, port: int = 29500) -> dict[str, str]:
        """torchrun's variables for one process per host, and the interface for every library."""
        ranks = self.network.ranks
        first = ranks[0].name
        interface = self.emulator.interface
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(ranks)),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(rank),
            # A host behind a NAT does not reach itself at its public address.
            "MASTER_ADDR": self.emulator.own_address(self._index(first)) if rank == 0 else self.address(first),
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": interface,
            "NCCL_SOCKET_IFNAME": interface,
            "TP_SOCKET_IFNAME": interface,
            "GRADWIRE_IFNAME": interface,
            "GRADWIRE_HOST": ranks[rank].name,
            "GRADWIRE_LAB": self.mode,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            **self.dilation.environment(),
            **self._preload(self.emulator.env(self._index(ranks[rank].name))),
        }

    def _preload(self, env: Mapping[str, str] | None = None) -> dict[str, str]:
        """`env` with the libraries of dilated time, of `env` and of this process in LD_PRELOAD."""
        env = dict(env or {})
        own = (self.dilation.library(), env.get("LD_PRELOAD", ""))
        if any(own):
            env["LD_PRELOAD"] = ":".join(filter(None, (*own, os.environ.get("LD_PRELOAD", ""))))
        return env

    def run(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        on_line: OnLine | None = None,
        port: int | None = None,
    ) -> RunResult:
        """Run `command` on every rank until all end, one fails (the others get GRACE seconds), or `timeout`.

        `timeout` is in undilated seconds, GRACE in this machine's.
        """
        if not command:
            raise ConfigError("lab: no command to run; write for example: gradwire lab run -- python train.py")
        deadline = None if timeout is None else time.monotonic() + self.dilation.real(timeout)
        chosen_port = self.emulator.port(port)
        before = self.emulator.stats()
        machine = MachineUse.now()
        start = time.monotonic()  # the schedule's zero; all namespaces share this clock
        shared = {"GRADWIRE_LAB_START": f"{self.dilation.clock(start):.6f}", **(env or {})}
        self.emulator.begin()
        flows = CrossFlows(self, dilated(self.network, self.dilation.factor).cross, start)
        watcher = ProcessWatcher([], on_line)
        with Interrupts() as interrupts:
            try:
                for rank, host in enumerate(self.network.ranks):
                    watcher.add(
                        self.spawn(host.name, command, {**os.environ, **self.rank_env(rank, chosen_port), **shared})
                    )
                timed_out = self._follow(watcher, flows, deadline, interrupts)
            finally:
                watcher.end_all(signal.SIGINT if interrupts.noted == signal.SIGINT else signal.SIGTERM)
                flows.close()
                watcher.close()
        after = self.emulator.stats()
        code = watcher.failed[0].process.returncode if watcher.failed else 124 if timed_out else 0
        results = tuple(
            replace(result, seconds=self.dilation.seconds(result.seconds))
            for result in (entry.result() for entry in watcher.processes)
        )
        used = MachineUse.now()
        stolen, others = used.stolen_since(machine), used.others_since(machine)
        seconds = self.dilation.seconds(time.monotonic() - start)
        between = after.since(before)
        return RunResult(code, seconds, results, between, timed_out, stolen, others, self.dilation.factor)

    def _follow(
        self, watcher: ProcessWatcher, flows: CrossFlows, deadline: float | None, interrupts: Interrupts
    ) -> bool:
        """Wait until all ended, GRACE after a failure, the deadline, or a signal. True at the deadline."""
        failed_at: float | None = None
        reported = False
        while watcher.running and interrupts.noted is None:
            self.emulator.check()
            flows.step(time.monotonic())
            watcher.step(0.05)
            now = time.monotonic()
            if watcher.failed and failed_at is None:
                failed_at = now
                first = watcher.failed[0]
                self._note(
                    f"{first.host} failed with code {first.process.returncode}; ending the others in {GRACE:g} s"
                )
            if failed_at is not None and now > failed_at + GRACE:
                return False
            if deadline is not None and now > deadline:
                self._note("timeout reached; ending all hosts")
                return True
            reported = reported or self._report_still_running(watcher, now)
        if interrupts.noted is None:
            watcher.drain()
        return False

    def _report_still_running(self, watcher: ProcessWatcher, now: float) -> bool:
        ended = [entry for entry in watcher.processes if entry.ended is not None]
        if watcher.failed or not ended or now < max(entry.ended or now for entry in ended) + STILL_RUNNING_AFTER:
            return False
        names = ", ".join(entry.host for entry in watcher.running)
        self._note(
            f"{ended[0].host} ended {STILL_RUNNING_AFTER:g} s ago, {names} still run: "
            "is a rank waiting for one that has ended?"
        )
        return True

    def _index(self, host: str) -> int:
        for index, entry in enumerate(self.network.hosts):
            if entry.name == host:
                return index
        known = ", ".join(entry.name for entry in self.network.hosts[:8])
        raise ConfigError(f"lab: there is no host {host!r} in {self.network.name}; its hosts are {known}")
