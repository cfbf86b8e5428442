"""What would be uploaded: the sdist builds without a network, the wheel is small, whole, and works where it is put."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import gradwire

ROOT = Path(__file__).parents[2]
LARGEST_WHEEL = 5_000_000
pytestmark = [pytest.mark.release, pytest.mark.timeout(400)]


def run(command: list[str | Path], folder: Path) -> str:
    """Without a package index: whatever is not here already is a failure."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON", "GRADWIRE_"))}
    tools = Path(sys.executable).parent
    alone = {"PIP_NO_INDEX": "1", "PATH": f"{tools}:{os.environ['PATH']}", "GLOO_SOCKET_IFNAME": "lo"}
    cached = {"CCACHE_BASEDIR": "/", "CCACHE_NOHASHDIR": "1"}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**kept, **alone, **cached},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tree's sdist and the wheel that was built from it, by the tools of this environment."""
    folder = tmp_path_factory.mktemp("dist")
    # With neither --sdist nor --wheel it makes the sdist, unpacks it, and builds the wheel from that.
    run([sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", "-o", folder, ROOT], folder)
    return folder


def test_the_wheel_is_small_and_holds_what_runs(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    assert wheel.stat().st_size < LARGEST_WHEEL
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
    assert any(name.startswith("gradwire/_native") and name.endswith(".so") for name in names)
    assert any(name.endswith("gradwire-linkemu") for name in names), "the lab's emulator"
    for name in (
        "gradwire/py.typed",
        "gradwire/_native.pyi",
        "gradwire/demo/digits.csv.gz",
        "gradwire/network/data/aws10.csv",
    ):
        assert name in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert any(name.endswith("licenses/THIRD-PARTY") for name in names)
    assert not [name for name in names if name.startswith(("tests", "benchmarks")) or "__pycache__" in name]


def test_the_sdist_has_the_sources_and_no_leftovers(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        names = [name.partition("/")[2] for name in packed.getnames()]
    for name in (
        "native/CMakeLists.txt",
        "src/gradwire/integrations/ddp.py",
        "LICENSE",
        "README.md",
        "SECURITY.md",
        "PKG-INFO",
    ):
        assert name in names
    assert not [name for name in names if name.startswith((".venv", "build/", ".git/")) or name.endswith(".so")]


def test_the_wheel_works_in_a_clean_environment(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    venv.create(tmp_path / "clean", with_pip=True)
    python = tmp_path / "clean" / "bin" / "python"
    site = Path(
        sysconfig.get_path("purelib", vars={"base": str(tmp_path / "clean"), "platbase": str(tmp_path / "clean")})
    )
    run([python, "-m", "pip", "install", "-q", "--no-deps", wheel], tmp_path)
    # torch and the other dependencies come from this environment; gradwire comes first, from the clean one.
    others = [path for path in sys.path if path.endswith("site-packages")]
    (site / "dependencies.pth").write_text("\n".join(others) + "\n")
    told = run([python, Path(__file__).with_name("smoke.py"), site], tmp_path)
    assert f"smoke: gradwire {gradwire.__version__}" in told


def test_one_version_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == gradwire.__version__
    assert f"## {gradwire.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"version: {gradwire.__version__}" in (ROOT / "CITATION.cff").read_text()
