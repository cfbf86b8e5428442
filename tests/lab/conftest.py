"""These tests create real networks. Without privileges they are skipped with the reason; in CI that is a failure."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gradwire.lab import Lab, NoPrivilegesError
from gradwire.network import LinkSpec, Network, preset
from gradwire.network.network import as_hosts, both
from gradwire.units import Bytes, Rate, Seconds

TOOLS = Path(__file__).parents[2] / "scripts" / "lab-tools"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.lab)


def missing() -> str:
    """Why there can be no lab here; empty when there can."""
    if any(shutil.which(tool) is None for tool in ("ping", "iperf3")) and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run([TOOLS], check=False, timeout=300)
    for tool in ("ping", "iperf3"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (scripts/lab-tools installs it)"
    try:
        with Lab(preset("lan100", 2)):
            return ""
    except NoPrivilegesError as error:
        return str(error)


@pytest.fixture(scope="session", autouse=True)
def _lab_works() -> None:
    if reason := missing():
        if os.environ.get("GRADWIRE_CI") == "1":
            pytest.fail(f"CI must run the lab: {reason}")
        pytest.skip(reason)


def pair(
    mbit: float = 100,
    delay_ms: float = 0,
    loss: float = 0,
    queue: int | None = None,
    seed: int = 1,
    congestion: str = "cubic",
) -> Network:
    """Two hosts on one cable; the loss is on the way from a to b only."""
    size = None if queue is None else Bytes(queue)
    there = LinkSpec(Rate.from_mbit(mbit), Seconds(delay_ms / 1000), loss=loss, queue=size)
    back = LinkSpec(Rate.from_mbit(mbit), Seconds(delay_ms / 1000), queue=size)
    return Network("pair", as_hosts("ab"), both("a", "b", there, back), seed=seed, congestion=congestion)
