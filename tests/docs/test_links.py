"""Every link has a target, on disk and in the site; generated pages are up to date."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.presence import needs

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"^( *)(```|~~~).*?^\1\2", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)")


def pages() -> list[Path]:
    """The Markdown files that belong to the repository."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    found = [ROOT / line for line in listed.splitlines()] or [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    return [path for path in found if path.exists()]


def slug(heading: str) -> str:
    """The anchor that GitHub generates for a heading."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)|[`*]", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def dead_on_disk(page: Path) -> list[str]:
    dead = []
    for link in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        found = target.exists() and (target.suffix != ".md" or not parts.fragment or parts.fragment in anchors(target))
        if not found:
            dead.append(link)
    return dead


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_has_a_target(page: Path) -> None:
    assert dead_on_disk(page) == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `title`, once\n[a](page.md#a-title-once) [b](#none) [c](none.md) [d](https://example.org/none)\n"
    )
    assert dead_on_disk(page) == ["#none", "none.md"]


def test_the_reference_pages_are_generated_from_the_current_source() -> None:
    """In a fresh interpreter: this one may hold modules of an older source, or settings of earlier tests."""
    code = "import json, runpy; print(json.dumps(runpy.run_path('scripts/reference.py')['pages']()))"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GRADWIRE_")}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=kept, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    stale = [path for path, text in made.items() if not (ROOT / path).is_file() or (ROOT / path).read_text() != text]
    assert stale == [], "run: python scripts/reference.py"


def test_every_link_of_the_site_has_a_target(request: pytest.FixtureRequest) -> None:
    for package in ("mkdocs", "material", "mkdocstrings"):
        needs(package, "docs")
    site: Path = request.getfixturevalue("site")
    texts = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html") if path.name != "404.html"}
    names = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in texts.items()}
    dead = []
    for path, text in texts.items():
        for link in map(unescape, re.findall(r'<a [^>]*?href="([^"]+)"', text)):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (parts.fragment and target in names and parts.fragment not in names[target]):
                dead.append(f"{path.relative_to(site)}: {link}")
    assert dead == []
