"""Slurm cluster: munge, one slurmctld and a slurmd on every host of a lab, all with files of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gradwire.lab import Lab
from tests.engines.machines import Machines, wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "sinfo", "scontrol")
# Seconds after which slurmctld takes a silent node for lost; Slurm's default is 300.
NODE_TIMEOUT = 3
START_TIMEOUT = 30.0
# Files and sockets below one folder, no accounting, and what works without systemd and cgroups.
CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={controller}({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0
ReturnToService=2
SlurmdTimeout={timeout}
MessageTimeout={timeout}
KillWait=2
PartitionName=lab Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
NODE = "NodeName={host} NodeAddr={address} CPUs=8 State=UNKNOWN\n"


class SlurmCluster:
    """A running cluster; commands run on its first host, where slurmctld is."""

    def __init__(self, machines: Machines, hosts: Sequence[str]) -> None:
        self.machines, self.hosts = machines, hosts

    def run(self, *command: str, timeout: float = 60.0, **environment: str) -> str:
        return self.machines.run(self.hosts[0], command, timeout, **environment)

    def states(self) -> dict[str, str]:
        """The state of every node, such as "idle" or "down*"."""
        lines = self.run("sinfo", "--noheader", "--Node", "--format", "%N %T").splitlines()
        return dict(line.split() for line in lines if len(line.split()) == 2)

    def crash(self, host: str) -> None:
        """Kill a node with the ranks on it."""
        assert host != self.hosts[0], "slurmctld runs there"
        self.machines.crash(host)


@contextmanager
def slurm_cluster(lab: Lab, folder: Path) -> Iterator[SlurmCluster]:
    """A cluster of all hosts of an open lab, with its files in `folder`. munged serves all of them by one socket."""
    hosts = [host.name for host in lab.network.hosts]
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    head = CONFIGURATION.format(controller=hosts[0], address=lab.address(hosts[0]), folder=folder, timeout=NODE_TIMEOUT)
    nodes = (NODE.format(host=host, address=lab.address(host)) for host in hosts)
    (folder / "slurm.conf").write_text(head + "".join(nodes))
    machines = Machines(lab, folder, {"SLURM_CONF": str(folder / "slurm.conf")})
    try:
        files = [f"--{kind}={folder}/munge.{kind.removesuffix('-file')}" for kind in ("socket", "key-file", "pid-file")]
        files += [f"--seed-file={folder}/munge.seed", f"--log-file={folder}/munge.log"]
        machines.start(hosts[0], ["munged", "--foreground", "--force", *files])
        wait_until((folder / "munge.socket").exists, START_TIMEOUT, machines.logs)
        machines.start(hosts[0], ["slurmctld", "-D", "-i"])
        for host in hosts:
            machines.start(host, ["slurmd", "-D", "-N", host])
        cluster = SlurmCluster(machines, hosts)
        wait_until(lambda: _all_idle(cluster), START_TIMEOUT, machines.logs)
        yield cluster
    finally:
        machines.close()


def _all_idle(cluster: SlurmCluster) -> bool:
    try:
        return list(cluster.states().values()) == ["idle"] * len(cluster.hosts)
    except AssertionError:  # slurmctld does not listen yet
        return False
