"""Slurm: the commands of docs/howto/engines.md on a cluster in the lab, and a node that is lost and replaced."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradwire.lab import Lab
from tests.docs.blocks import blocks
from tests.engines.conftest import ROOT, requires
from tests.engines.machines import wait_until
from tests.engines.restarted_run import EVERY, LOST, PAGE, check_output, checkpoint, command
from tests.engines.slurm_cluster import PROGRAMS, SlurmCluster, slurm_cluster

# Ranks import torch and train over 80 ms, on a machine that may be busy.
DEADLINE = 120.0


@pytest.fixture
def cluster(wan: Lab, folder: Path) -> Iterator[SlurmCluster]:
    requires(PROGRAMS, "slurmctld slurmd slurm-client munge")
    with slurm_cluster(wan, folder) as running:
        yield running


def shell(cluster: SlurmCluster, folder: Path, text: str) -> str:
    script = f"set -euo pipefail\ncd {folder}\n{text}"
    return cluster.run("bash", "-c", script, timeout=DEADLINE, SHARED=str(folder))


def job(cluster: SlurmCluster, number: str) -> dict[str, str]:
    """The fields of `scontrol show job`."""
    return dict(re.findall(r"(\w+)=(\S*)", cluster.run("scontrol", "show", "job", number)))


def ended(cluster: SlurmCluster, number: str) -> bool:
    """Whether the job has completed; one that was queued again starts without Slurm's delay of two minutes."""
    fields = job(cluster, number)
    assert fields["JobState"] not in {"FAILED", "CANCELLED", "NODE_FAIL"}, fields
    if fields["JobState"] == "PENDING" and fields["Reason"] == "BeginTime" and fields["Restarts"] != "0":
        cluster.run("scontrol", "update", f"JobId={number}", "StartTime=now")
    return fields["JobState"] == "COMPLETED"


@pytest.mark.timeout(400)
def test_a_job_under_slurm_continues_on_another_node(cluster: SlurmCluster, folder: Path) -> None:
    submitted = shell(cluster, folder, command("sbatch"))
    number = submitted.split()[-1]
    log = folder / f"slurm-{number}.out"
    wait_until(lambda: checkpoint(folder / "run", EVERY), DEADLINE, lambda: _text(log))
    cluster.crash(LOST)
    wait_until(lambda: ended(cluster, number), DEADLINE, lambda: _text(log) + cluster.machines.logs())
    output = _text(log)
    assert f"rank 1 on {LOST} is gone" in output
    check_output(output)
    assert cluster.states()[LOST] == "down*"


@pytest.mark.timeout(400)
def test_a_job_of_which_a_rank_is_reported_lost_is_queued_again(cluster: SlurmCluster, folder: Path) -> None:
    number = shell(cluster, folder, command("sbatch")).split()[-1]
    log = folder / f"slurm-{number}.out"
    wait_until(lambda: checkpoint(folder / "run", EVERY), DEADLINE, lambda: _text(log))
    os.kill(_process_of_rank(1), signal.SIGKILL)
    wait_until(lambda: ended(cluster, number), DEADLINE, lambda: _text(log) + cluster.machines.logs())
    assert job(cluster, number)["Restarts"] == "1"


def _process_of_rank(rank: int) -> int:
    """The process of the example that trains as this rank."""
    (found,) = [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit() and _trains(one, rank)]
    return found


def _trains(process: Path, rank: int) -> bool:
    try:
        runs_example = b"examples/restarts.py" in (process / "cmdline").read_bytes()
        return runs_example and f"SLURM_PROCID={rank}\0".encode() in (process / "environ").read_bytes()
    except OSError:  # it has ended meanwhile
        return False


@pytest.mark.timeout(400)
def test_the_doctor_and_an_unchanged_script_run_under_slurm(cluster: SlurmCluster, folder: Path) -> None:
    report = shell(cluster, folder, command("gradwire doctor"))
    assert "export GRADWIRE_SITE=site0   # on h0, h1" in report
    assert "export GRADWIRE_SITE=site1   # on h2" in report
    (script,) = [block for block in blocks(PAGE) if block.title == "train.sbatch"]
    (folder / "train.sbatch").write_text(script.text)
    (folder / "train.py").write_text((ROOT / "examples" / "no_change.py").read_text())
    smaller = "--nodes 2 --nodelist h1,h2 --cpus-per-task 1 --output job.log"
    shell(cluster, folder, f"sbatch --wait {smaller} train.sbatch || cat job.log")
    output = _text(folder / "job.log")
    loss = re.search(r"loss ([\d.]+) after 40 steps", output)
    assert loss is not None, output
    assert float(loss[1]) < 1.3, "chance is 1.6"


def _text(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else "no output"
