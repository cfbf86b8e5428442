"""A job whose store has a process of its own survives the loss of rank 0, under torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.cli.test_store import served
from tests.train.store_process import STEPS

__all__ = ["served"]
NODES = 3


@pytest.mark.timeout(240)
def test_a_job_continues_when_the_process_of_rank_0_and_its_agent_ended(
    served: tuple[subprocess.Popen[str], str], tmp_path: Path
) -> None:
    """Each rank has an agent of its own, as on separate hosts; the agent of rank 0 ends with it."""
    _, address = served
    environment = os.environ | {"GRADWIRE_STORE": address, "GLOO_SOCKET_IFNAME": "lo", "GRADWIRE_IFNAME": "lo"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(NODES), "--nproc-per-node", "1"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", address, "--rdzv-conf", "is_host=0", "--rdzv-id", "job"]
    command += ["--local-addr", "127.0.0.1", "--max-restarts", "0", "-m", "tests.train.store_process", str(tmp_path)]
    agents = [subprocess.Popen(command, env=environment) for _ in range(NODES)]
    # After their workers ended, the agents would wait 300 s for the one that is missing.
    done, deadline = [tmp_path / f"{rank}.done" for rank in (1, 2)], time.monotonic() + 200

    def ended() -> list[int | None]:
        return [agent.poll() for agent in agents]

    try:
        # On a busy machine the agent of rank 0 may need longer to end than the others' last steps.
        while not (all(mark.exists() for mark in done) and any(ended())) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert ended().count(1) == 1, "the agent of rank 0 did not end"
    finally:
        for agent in agents:
            agent.terminate()
        for agent in agents:
            agent.wait(30)
    assert not (tmp_path / "0.pt").exists()
    ends = [torch.load(tmp_path / f"{rank}.pt") for rank in (1, 2)]
    assert [end["made"] for end in ends] == [STEPS, STEPS], "a step was lost"
    assert torch.equal(ends[0]["weights"], ends[1]["weights"])
