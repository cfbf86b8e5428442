"""Ray cluster: a head and nodes, each on a host of a lab, with addresses, folders and object stores of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gradwire.lab import Lab
from tests.engines.machines import Machines, wait_until

PORT = 6379
START_TIMEOUT = 90.0
# One rank on each node; bytes of the object store, of which Ray allows no less than 75 MB.
SMALL = ["--num-cpus=1", "--object-store-memory=80000000", "--include-log-monitor=false", "--disable-usage-stats"]


class RayCluster:
    """A head, on the first host, and nodes. Commands run on the first host."""

    def __init__(self, machines: Machines, folder: Path, head: str) -> None:
        self.machines, self._folder, self._head = machines, folder, head

    @property
    def address(self) -> str:
        return f"{self.machines.lab.address(self._head)}:{PORT}"

    def add(self, host: str) -> None:
        """Start a node; it joins when the head answers."""
        self._start(host, f"--address={self.address}")

    def start_head(self) -> None:
        self._start(self._head, "--head", f"--port={PORT}", "--include-dashboard=false", "--no-monitor")
        wait_until(lambda: "Ray runtime started" in self.machines.logs(), START_TIMEOUT, self.machines.logs)

    def _start(self, host: str, *arguments: str) -> None:
        own = [f"--node-ip-address={self.machines.lab.address(host)}", f"--temp-dir={self._folder / host}"]
        self.machines.start(host, ["ray", "start", *arguments, *own, *SMALL, "--block"])

    def run(self, *command: str, timeout: float, **environment: str) -> str:
        return self.machines.run(self._head, command, timeout, RAY_ADDRESS=self.address, **environment)

    def crash(self, host: str) -> None:
        """Kill a node with the ranks on it."""
        assert host != self._head, "a cluster does not survive the loss of its head"
        self.machines.crash(host)

    def printed(self) -> str:
        """What all workers of all nodes have printed."""
        logs = self._folder.glob("*/session_[0-9]*/logs/worker-*.out")
        return "".join(log.read_text(errors="replace") for log in logs)


@contextmanager
def ray_cluster(lab: Lab, folder: Path, hosts: Sequence[str]) -> Iterator[RayCluster]:
    """A cluster of `hosts`, the first of which is the head, with its files in `folder`."""
    machines = Machines(lab, folder, {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1"})
    cluster = RayCluster(machines, folder, hosts[0])
    try:
        cluster.start_head()
        for host in hosts[1:]:
            cluster.add(host)
        yield cluster
    finally:
        machines.close()
