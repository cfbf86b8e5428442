"""These tests start a cluster in the lab, which needs root. A missing program is a failure in CI, else a skip."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gradwire.lab import Lab, NoPrivilegesError
from gradwire.network import preset

ROOT = Path(__file__).parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.lab)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that all hosts see, with the examples of a clone. Its path is short: it is that of sockets, too."""
    with TemporaryDirectory(prefix="gw", dir="/tmp", ignore_cleanup_errors=True) as name:
        (Path(name) / "examples").symlink_to(ROOT / "examples")
        yield Path(name)


@pytest.fixture
def wan(tmp_path: Path) -> Iterator[Lab]:
    """h0 and h1 at one site, h2 and h3 at another, 80 ms apart."""
    try:
        if os.geteuid() != 0:
            raise NoPrivilegesError("a cluster's daemons need root")
        with Lab(preset("wan-us-eu", 4)) as lab:
            yield lab
    except NoPrivilegesError as error:
        absent(str(error))


def requires(programs: Sequence[str], package: str) -> None:
    """Go on only where all programs are installed."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        absent(f"{', '.join(missing)} not installed; apt-get install {package}")


def absent(reason: str) -> None:
    assert os.environ.get("GRADWIRE_CI") != "1", f"CI must run clusters: {reason}"
    pytest.skip(reason)
