"""Records of labs: open labs are left alone, dead ones are removed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from gradwire.lab.open_labs import LabRecord, open_labs, remove_dead_labs, started_at


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRADWIRE_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def test_a_lab_of_ours_is_open_until_it_is_removed(folder: Path) -> None:
    record = LabRecord.create("lan100", os.getpid(), "127.0.0.1 localhost\n")
    assert [lab["network"] for lab in open_labs()] == ["lan100"]
    assert remove_dead_labs() == []
    record.remove()
    assert not list(folder.iterdir())


def test_the_emulator_of_a_dead_lab_is_ended_and_its_record_removed(folder: Path) -> None:
    emulator = subprocess.Popen(["sleep", "300"])
    owner = subprocess.Popen(["true"])
    record = {
        "network": "x",
        "pid": owner.pid,
        "started": started_at(owner.pid),
        "emulator": emulator.pid,
        "emulator_started": started_at(emulator.pid),
    }
    owner.wait()
    (folder / "a.json").write_text(json.dumps(record))
    assert remove_dead_labs() == [f"x (process {owner.pid})"]
    assert emulator.wait(timeout=5) == -9
    assert not list(folder.iterdir())


def test_a_process_that_only_has_the_same_number_is_not_touched(folder: Path) -> None:
    other = subprocess.Popen(["sleep", "300"])
    try:
        record = {"network": "x", "pid": 1, "started": -1, "emulator": other.pid, "emulator_started": 12345}
        (folder / "a.json").write_text(json.dumps(record))
        assert len(remove_dead_labs()) == 1
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null"])
def test_a_broken_record_is_removed(folder: Path, text: str) -> None:
    (folder / "broken.json").write_text(text)
    assert len(remove_dead_labs()) == 1
    assert not list(folder.iterdir())


def test_a_folder_of_another_user_is_ignored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = subprocess.Popen(["sleep", "300"])
    try:
        record = {"pid": 1, "started": -1, "emulator": other.pid, "emulator_started": started_at(other.pid)}
        (folder / "a.json").write_text(json.dumps(record))
        monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
        assert remove_dead_labs() == []
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
