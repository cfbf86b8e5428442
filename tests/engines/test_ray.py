"""Ray Train: the command of docs/howto/engines.md on a cluster in the lab, and a node that is lost and replaced."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gradwire.lab import Lab
from tests.engines.machines import wait_until
from tests.engines.ray_cluster import RayCluster, ray_cluster
from tests.engines.restarted_run import AFTER, BEFORE, EVERY, LOST, check_output, checkpoint, command, recorded_sites
from tests.presence import needs

needs("ray", "clients")

# Ray starts a dozen processes on each node, on a machine that may be busy.
DEADLINE = 300.0
# Of the driver, which passes it on to the ranks: the kernel measures the round trips of TCP, on a busy machine too.
SETTINGS = {"GRADWIRE_TRANSPORT": "tcp"}
# Seconds until the links of a run that trains are recorded.
WATCHED = 30.0


class Driver(threading.Thread):
    """Runs the page's command on the head; `join` returns when it has ended, at the latest after DEADLINE seconds."""

    def __init__(self, cluster: RayCluster, folder: Path) -> None:
        super().__init__(name="ray-driver")
        self._cluster, self._folder = cluster, folder
        self.output, self.error = "", ""

    def run(self) -> None:
        script = f"set -euo pipefail\ncd {self._folder}\n{command('restarts_ray')}"
        try:
            self.output = self._cluster.run(
                "bash", "-c", script, timeout=DEADLINE, SHARED=str(self._folder), **SETTINGS
            )
        except Exception as error:  # it fails the test, in its own thread
            self.error = str(error)


@pytest.mark.timeout(600)
def test_a_job_of_ray_train_continues_on_another_node(wan: Lab, folder: Path) -> None:
    with ray_cluster(wan, folder, ["h0", "h1", "h2"]) as cluster:
        driver = Driver(cluster, folder)
        driver.start()
        try:
            wait_until(lambda: checkpoint(folder / "run", EVERY) or not driver.is_alive(), DEADLINE, cluster.printed)
            wait_until(lambda: recorded_sites(folder / "record") == BEFORE, WATCHED, cluster.printed)
            cluster.crash(LOST)
            cluster.add("h3")
        finally:
            driver.join()
        assert not driver.error, driver.error
        assert "3 ranks have trained 60 steps" in driver.output
        check_output(cluster.printed())
        assert recorded_sites(folder / "record") == AFTER
