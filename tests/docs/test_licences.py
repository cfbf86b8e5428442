"""docs/licences.md lists every dependency, with a licence that the installed package names too."""

from __future__ import annotations

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


def said(package: str) -> str:
    """Everything that a package's metadata says of its licence."""
    found = metadata.metadata(package)
    classifiers = [text for text in found.get_all("Classifier") or [] if text.startswith("License")]
    return " ".join([found.get("License-Expression") or "", found.get("License") or "", *classifiers])


def test_every_dependency_has_a_row_and_every_row_a_dependency() -> None:
    assert set(listed()) - {"package", "---"} == required()


@pytest.mark.parametrize("package", sorted(required()))
def test_the_installed_package_names_the_same_licence(package: str) -> None:
    try:
        text = said(package)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed here")
    for licence in listed()[package].split(" AND "):
        family = licence.partition("-")[0]
        assert family in text or ALSO.get(family, family) in text, f"{package} says {text[:200]!r}, the page {licence}"
