"""The commands in the README and the guides run unchanged, page by page, each page in its own folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import Block, blocks
from tests.trials import Trial, decide

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / name for name in ("tutorial.md", "observe.md", "planning.md")),
    *(
        ROOT / "docs" / "howto" / name
        for name in ("attach.md", "backend.md", "estimate.md", "frameworks.md", "faults.md", "two-offices.md")
    ),
    *(ROOT / "docs" / "howto" / name for name in ("wan.md", "planner.md", "compressor.md", "kubernetes.md")),
]  # those of engines.md need a cluster: tests/engines
# The slowest blocks start a lab and train in it, or run the doctor.
DEADLINE = 150.0
# What the lab prints if its numbers are not reliable, and beside a measurement that is off.
LATE, OFF = "THE LAB COULD NOT KEEP UP", "✗"


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GRADWIRE_")}
    here = Path(sys.executable).parent
    return {**kept, "PATH": f"{here}:{kept['PATH']}", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def run(page: Path, block: Block, folder: Path) -> None:
    """If the lab could not keep up, or its check marks a measurement as off, the failure depends on real time and is
    tried again; every other failure is an error of the page."""

    def trial(measured: Trial) -> None:
        done = subprocess.run(
            ["bash", "-c", f"set -euo pipefail\n{block.text}"],
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE,
            check=False,
        )
        report = f"{page.name}:{block.line} ended with {done.returncode}\n{block.text}\n{done.stdout}"
        if LATE in done.stdout:
            measured.excuse("the lab could not keep up")
        if done.returncode != 0 and LATE not in done.stdout and OFF not in done.stdout:
            pytest.fail(report)
        assert done.returncode == 0, report

    decide(trial)


@pytest.mark.timed
@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    # What a reader in a clone has: the examples, and a training script with the name that the pages use.
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "train.py").write_text((ROOT / "examples" / "no_change.py").read_text())
    for block in blocks(page):
        if block.title:
            (tmp_path / block.title).write_text(block.text)
        if block.is_command and block.reason is None:
            run(page, block, tmp_path)


def test_a_block_that_is_not_run_says_why() -> None:
    for page in PAGES:
        for block in blocks(page):
            assert block.reason is None or len(block.reason) > 10, f"{page.name}:{block.line}"


def test_a_failing_command_fails_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\ntrue\nfalse | true\ntrue\n```\n")
    (block,) = blocks(page)
    with pytest.raises(pytest.fail.Exception, match=r"page.md:1 ended with 1"):
        run(page, block, tmp_path)


def test_the_manifest_is_well_formed() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with the docs extra")
    (manifest,) = [block for block in blocks(ROOT / "docs/howto/kubernetes.md") if block.language == "yaml"]
    service, job = yaml.safe_load_all(manifest.text)
    assert service["spec"]["selector"]["job-name"] == job["metadata"]["name"]
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert f"--nnodes={job['spec']['completions']}" in job["spec"]["template"]["spec"]["containers"][0]["args"]
