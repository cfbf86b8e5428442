"""The lab: a Network as namespaces, an emulator and processes on one Linux machine."""

from gradwire.emulate.emulator import NoPrivilegesError
from gradwire.emulate.lab import Lab, RunResult
from gradwire.emulate.process import HostResult
from gradwire.emulate.stats import EmulatorStats, LinkStats

__all__ = ["EmulatorStats", "HostResult", "Lab", "LinkStats", "NoPrivilegesError", "RunResult"]
