"""Open labs: one small file per open lab on this machine, so that the remains of a killed lab are found and ended.

A lab has no names outside its processes, so after `kill -9` the kernel removes almost everything; the record finds an
emulator that another process kept alive.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def state_folder() -> Path:
    """/run/gradwire for root, otherwise the user's runtime directory."""
    if override := os.environ.get("GRADWIRE_RUNTIME_DIR"):
        return Path(override)
    if os.geteuid() == 0 and os.access("/run", os.W_OK):
        return Path("/run/gradwire")
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "gradwire" if base else Path(tempfile.gettempdir()) / f"gradwire-{os.getuid()}"


def started_at(pid: int) -> int | None:
    """A process' start time in clock ticks, which distinguishes it from a later one with the same number."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


@dataclass(frozen=True, slots=True)
class LabRecord:
    """The file of one open lab, and next to it the /etc/hosts of its commands."""

    path: Path

    @classmethod
    def create(cls, network: str, emulator: int, hosts: str) -> LabRecord:
        folder = state_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"{os.getpid()}-{emulator}.json"
        record = {
            "network": network,
            "pid": os.getpid(),
            "started": started_at(os.getpid()),
            "emulator": emulator,
            "emulator_started": started_at(emulator),
        }
        made = cls(path)
        made.hosts_file.write_text(hosts)
        # Atomic: another lab that starts now must see a complete record or none, or it would take this one for dead.
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(record))
        draft.replace(path)
        return made

    @property
    def hosts_file(self) -> Path:
        return self.path.with_suffix(".hosts")

    def remove(self) -> None:
        self.hosts_file.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)


def open_labs() -> list[dict[str, Any]]:
    """Records of labs whose owner is alive."""
    return [record for _, record in _records() if _alive(record, "pid", "started")]


def remove_dead_labs() -> list[str]:
    """End the emulators of dead labs and remove their records; returns a name for each."""
    removed = []
    for path, record in _records():
        if _alive(record, "pid", "started"):
            continue
        if _alive(record, "emulator", "emulator_started"):
            os.kill(record["emulator"], signal.SIGKILL)
        LabRecord(path).remove()
        removed.append(f"{record.get('network', '?')} (process {record.get('pid', '?')})")
    return removed


def _records() -> list[tuple[Path, dict[str, Any]]]:
    found = []
    folder = state_folder()
    # A directory made by another user could name this user's processes to be killed.
    owned = folder.is_dir() and folder.stat().st_uid == os.geteuid()
    for path in sorted(folder.glob("*.json")) if owned else []:
        try:
            record = json.loads(path.read_text())
        except (OSError, ValueError):
            record = {}
        found.append((path, record if isinstance(record, dict) else {}))
    return found


def _alive(record: dict[str, Any], pid: str, started: str) -> bool:
    number = record.get(pid)
    return isinstance(number, int) and started_at(number) is not None and started_at(number) == record.get(started)
