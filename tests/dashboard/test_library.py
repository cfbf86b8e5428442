"""Which runs are found in a directory, and how unreadable directories are handled."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from gradwire.dashboard import library as module
from gradwire.dashboard.library import Library
from gradwire.errors import ConfigError
from gradwire.observe.files import Segment, segments
from tests.dashboard.conftest import Served

HEAD = b'{"event":"opened","at":1.0,"format":"gradwire-events","version":1,"rank":0,"world_size":1,"wall":50.0}\n'


def record(folder: Path, age: float = 0.0) -> Path:
    """A run that was written `age` seconds after another of age 0."""
    folder.mkdir(parents=True)
    (folder / "rank00000.0000.jsonl").write_bytes(HEAD)
    os.utime(folder, (1e9 + age, 1e9 + age))
    return folder


def forbid(monkeypatch: pytest.MonkeyPatch, forbidden: Path) -> None:
    """Tests may run as root, who may read everything."""

    def refusing(folder: Path) -> list[Segment]:
        if folder == forbidden:
            raise PermissionError(13, "Permission denied")
        return segments(folder)

    monkeypatch.setattr(module, "segments", refusing)


def names(library: Library) -> list[str]:
    return [run.name for run in library.runs.values()]


def test_runs_are_found_two_levels_down_and_named_by_their_path(tmp_path: Path) -> None:
    record(tmp_path / "first")
    for run in ("gradwire", "plain-DDP"):
        record(tmp_path / "demo-1" / run)
    record(tmp_path / "too" / "far" / "down")
    assert names(Library([tmp_path])) == ["demo-1/gradwire", "demo-1/plain-DDP", "first"]


def test_the_newest_run_comes_first(tmp_path: Path) -> None:
    for name, age in (("a", 1.0), ("b", 3.0), ("c", 2.0)):
        record(tmp_path / name, age)
    library = Library([tmp_path])
    assert names(library) == ["b", "c", "a"]
    record(tmp_path / "d", 4.0)
    library._discover()
    assert names(library) == ["d", "b", "c", "a"]


def test_runs_have_addresses_made_of_their_names(tmp_path: Path) -> None:
    record(tmp_path / "first")
    for run in ("gradwire", "plain-DDP"):
        record(tmp_path / "demo-1" / run)
    assert list(Library([tmp_path]).runs) == ["demo-1-gradwire", "demo-1-plain-DDP", "first"]
    assert names(Library([tmp_path / "first", tmp_path / "first" / "rank00000.0000.jsonl"])) == ["first"]


def test_of_too_many_runs_the_newest_are_shown_and_the_others_counted(
    serve: Callable[..., Served], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MAX_RUNS", 2)
    for age, name in enumerate(("c", "b", "a")):
        record(tmp_path / name, age)
    served = serve(tmp_path)
    assert names(served.library) == ["a", "b"]
    assert httpx.get(served.address + "/api/runs").json()["left_out"] == 1
    assert "only the newest 2 runs" in caplog.text


def test_a_run_that_begins_later_takes_the_place_of_the_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RUNS", 2)
    old, kept = record(tmp_path / "old", 1), record(tmp_path / "kept", 2)
    library = Library([tmp_path])
    before = library.runs["kept"]
    record(tmp_path / "new", 3)
    library._discover()
    assert names(library) == ["new", "kept"]
    os.utime(old)  # it grows
    os.utime(kept)
    library._discover()
    assert names(library) == ["new", "kept"]
    assert library.runs["kept"] is before
    assert library.left_out == 1


def test_a_directory_that_cannot_be_read_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        record(tmp_path / name)
    forbid(monkeypatch, tmp_path / "b")
    assert names(Library([tmp_path])) == ["a", "c"]


def test_a_named_directory_that_cannot_be_read_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library([tmp_path])
    forbid(monkeypatch, tmp_path)
    with pytest.raises(ConfigError, match=r"cannot read .*Permission denied"):
        Library([tmp_path])
    library._discover()  # one that became so while it was shown is waited for
