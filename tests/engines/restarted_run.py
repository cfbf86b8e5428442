"""Restarted run: what `examples/restarts.py` printed and recorded on a cluster where one node was lost."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from gradwire.dashboard.site_names import site_names
from gradwire.observe.reader import read
from gradwire.observe.state import RunState
from tests.docs.blocks import blocks

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "engines.md"
# The defaults of the example.
STEPS, EVERY = 60, 10
# The job runs on h0, h1 and h2; h1 is lost, and h3 takes its place.
LOST = "h1"
BEFORE = {frozenset({"h0", "h1"}), frozenset({"h2"})}
AFTER = {frozenset({"h0"}), frozenset({"h2", "h3"})}
BEGIN = re.compile(r"rank (\d) is process \d+, from step (\d+)")
STEP = re.compile(r"rank (\d) step (\d+) weights ([0-9a-f]{8})")
END = re.compile(r"rank (\d) ends with accuracy ([\d.]+)")


def command(word: str) -> str:
    """The one command block of the page that contains `word`."""
    (block,) = [block for block in blocks(PAGE) if block.is_command and word in block.text]
    return block.text


def checkpoint(folder: Path, step: int) -> bool:
    """Whether all three ranks have completed the checkpoint of a step."""
    names = ("shared.pt", "rank0.pt", "rank1.pt", "rank2.pt")
    return all((folder / str(step) / name).is_file() for name in names)


def check_output(output: str) -> None:
    """All ranks began twice, then from a checkpoint; replicas were equal at every step; training converged."""
    begun = defaultdict(list)
    for rank, step in BEGIN.findall(output):
        begun[int(rank)].append(int(step))
    assert begun.keys() == {0, 1, 2}, output
    starts = {tuple(sorted(steps)) for steps in begun.values()}  # files of workers have no order
    assert len(starts) == 1, begun
    first, second = starts.pop()
    assert first == 0
    assert second in range(EVERY, STEPS, EVERY)
    weights = defaultdict(set)
    for _, step, digest in STEP.findall(output):
        weights[int(step)].add(digest)
    # A step after the checkpoint was made twice, from the same weights, over buckets that DDP built again.
    assert all(len(digests) == 1 for step, digests in weights.items() if step < second), weights
    assert all(len(digests) <= 2 for digests in weights.values()), weights
    assert len(weights[STEPS - 1]) == 1
    ends = {int(rank): float(accuracy) for rank, accuracy in END.findall(output)}
    assert ends.keys() == {0, 1, 2}, output
    assert min(ends.values()) > 0.8, "chance is 0.1"


def recorded_sites(folder: Path) -> set[frozenset[str]]:
    """The hosts of each site that the recorded round trips show, as the dashboard groups them."""
    state = RunState()
    for record in read(folder):
        state.take(record)
    sites: dict[str, set[str]] = defaultdict(set)
    for rank, name in site_names(state, sorted(state.ranks)).items():
        sites[name].add(state.ranks[rank].host)
    return {frozenset(hosts) for hosts in sites.values()}
