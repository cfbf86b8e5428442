"""Fixtures shared by several packages, and the report of inconclusive claims about real time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import broken_amx, trials
from tests.train.ranks import Ranks

UNDECIDED = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Worker processes that act as the ranks of a job."""
    pool = Ranks()
    yield pool
    pool.close()


def pytest_configure() -> None:
    broken_amx.avoid()
    # A test of a fixed level means its first steps too; tests of the warm-up say so.
    os.environ["GRADWIRE_COMPRESS_WARMUP"] = "0"
    # Triton's kernels run on the CPU (tests/compress/interpreted.py); triton reads this when it is imported.
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark tests that start other processes, and tests that decide a claim about real time."""
    if "ranks" in getattr(item, "fixturenames", ()):
        item.add_marker("processes")
    if _decides(item):
        item.add_marker("timed")


def _decides(item: pytest.Item) -> bool:
    """Whether the test's own body calls `trials.decide`."""
    function = getattr(item, "function", None)
    known = function is not None and function.__globals__.get("decide") is trials.decide
    return known and "decide" in function.__code__.co_names


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Collect the claims about real time that stayed inconclusive; CI gathers them from all its runs in a file."""
    lines = []
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        if trials.INCONCLUSIVE in reason:
            lines.append(f"not decided: {report.nodeid}: {reason.partition(trials.INCONCLUSIVE)[2]}")
    config.stash[UNDECIDED] = lines
    if lines and (path := os.environ.get("UNDECIDED_CLAIMS")):
        with Path(path).open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Print the inconclusive claims as the last lines of a run."""
    for line in config.stash.get(UNDECIDED, []):
        print(line)
