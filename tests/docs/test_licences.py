"""docs/licences.md lists every dependency, with a licence that the installed package names too; notices are shipped."""

from __future__ import annotations

import json
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# How packages write these families where they give no SPDX expression.
ALSO = {"PSF": "Python Software Foundation"}


def required() -> set[str]:
    project = PROJECT["project"]
    extras = [text for texts in project["optional-dependencies"].values() for text in texts]
    texts = [*PROJECT["build-system"]["requires"], *project["dependencies"], *extras]
    return {Requirement(text).name for text in texts}


def listed() -> dict[str, str]:
    page = (ROOT / "docs" / "licences.md").read_text().partition("## Not Python")[0]
    return {row[1]: row[2] for row in re.finditer(r"^\| ([\w.-]+) \|[^|]+\| ([\w.\- ]+) \|$", page, re.MULTILINE)}


def bundled() -> set[str]:
    """The dashboard's packages that its sources import, and so the built file contains."""
    known = json.loads((ROOT / "dashboard" / "package.json").read_text())
    sources = [path for path in (ROOT / "dashboard" / "src").rglob("*") if path.suffix in (".ts", ".svelte")]
    text = "\n".join(path.read_text() for path in sources)
    imported = set(re.findall(r'(?:from|import) "((?:@[^/"]+/)?[^./"][^/"]*)', text))
    return imported & {**known.get("dependencies", {}), **known["devDependencies"]}.keys()


def notices() -> dict[str, str]:
    """Package -> notice."""
    _, *parts = (ROOT / "THIRD-PARTY").read_text().split("=" * 80 + "\n")
    return {title.partition(":")[0]: text for title, text in zip(parts[::2], parts[1::2], strict=True)}


def stated_licence(package: str) -> str:
    """The licence statements in a package's metadata."""
    found = metadata.metadata(package)
    classifiers = [text for text in found.get_all("Classifier") or [] if text.startswith("License")]
    return " ".join([found.get("License-Expression") or "", found.get("License") or "", *classifiers])


def test_every_dependency_has_a_row_and_every_row_a_dependency() -> None:
    assert set(listed()) - {"package", "---"} == required()


@pytest.mark.parametrize("package", sorted(required()))
def test_the_installed_package_names_the_same_licence(package: str) -> None:
    try:
        text = stated_licence(package)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed here")
    for licence in listed()[package].split(" AND "):
        family = licence.partition("-")[0]
        assert family in text or ALSO.get(family, family) in text, f"{package} says {text[:200]!r}, the page {licence}"


def test_what_is_built_in_has_a_row_and_a_notice_that_is_shipped() -> None:
    assert {"svelte", "uplot"} <= bundled()
    page = (ROOT / "docs" / "licences.md").read_text().partition("## Not Python")[2]
    rows = set(re.findall(r"^\| ([\w.-]+)", page, re.MULTILINE))
    assert bundled() | {"nanobind", "robin-map"} <= rows & notices().keys()
    assert "THIRD-PARTY" in PROJECT["project"]["license-files"]


@pytest.mark.parametrize("package", sorted(bundled()))
def test_the_notice_is_the_installed_packages(package: str) -> None:
    texts = [path.read_text() for path in (ROOT / "dashboard" / "node_modules" / package).glob("LICENSE*")]
    if not texts:
        pytest.skip(f"{package} is not installed here")
    assert texts[0].split() == notices()[package].split()


def test_nanobinds_notice_is_the_installed_ones() -> None:
    files = [path for path in metadata.files("nanobind") or [] if path.name == "LICENSE"]
    if not files:
        pytest.skip("nanobind's licence is not installed here")
    assert " ".join(files[0].read_text().split()) in " ".join(notices()["nanobind"].split())
