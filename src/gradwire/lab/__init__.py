"""Lab: runs a Network on one Linux machine: namespaces, a link emulator and processes."""

from gradwire.lab.emulator import NoPrivilegesError
from gradwire.lab.lab import Lab, RunResult
from gradwire.lab.process import HostResult
from gradwire.lab.stats import EmulatorStats, LinkStats

__all__ = ["EmulatorStats", "HostResult", "Lab", "LinkStats", "NoPrivilegesError", "RunResult"]
