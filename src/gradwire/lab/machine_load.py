"""Machine load: processor time that other programs used during a measurement."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

# Chosen, not measured: services of an idle system use far less than a tenth of the cores; one busy program on a
# machine with fewer than ten cores uses more.
NOTICEABLE_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class MachineUse:
    """Processor seconds since the machine started, at one time of the monotonic clock."""

    at: float
    busy: float  # of all programs
    stolen: float  # given to other virtual machines by the hypervisor
    own: float  # of this process and all its descendants

    @classmethod
    def now(cls) -> MachineUse:
        with open("/proc/stat") as file:
            fields = [int(field) for field in file.readline().split()[1:]]
        tick = os.sysconf("SC_CLK_TCK")
        # User, nice and system time, without time in interrupts: our own packets cause much of that, and the kernel
        # assigns it to no process.
        stolen = fields[7] if len(fields) > 7 else 0
        return cls(time.monotonic(), sum(fields[:3]) / tick, stolen / tick, _own_ticks() / tick)

    def stolen_since(self, before: MachineUse) -> float:
        """Mean number of cores given to other virtual machines."""
        return (self.stolen - before.stolen) / max(self.at - before.at, 1e-9)

    def others_since(self, before: MachineUse) -> float:
        """Mean number of cores that other programs and other virtual machines used."""
        foreign = (self.busy - before.busy) - (self.own - before.own)
        return max(0.0, foreign) / max(self.at - before.at, 1e-9) + self.stolen_since(before)


def disturbance(others: float, cores: int | None = None) -> str:
    """A sentence about `others` cores used by other programs; empty if that is negligible."""
    cores = cores or os.cpu_count() or 1
    return f"other programs used {others:.2f} of {cores} cores" if others > NOTICEABLE_SHARE * cores else ""


def _own_ticks() -> int:
    """User and system time of this process, of its live descendants, and of all that they have waited for."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        pid = int(folder.name)
        children.setdefault(int(fields[1]), []).append(pid)
        ticks[pid] = sum(map(int, fields[11:15]))
    family = [os.getpid()]
    for pid in family:  # grows during the iteration
        family += children.get(pid, ())
    return sum(ticks.get(pid, 0) for pid in family)
