"""The Python blocks of the README and the guides run unchanged, top to bottom."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import gradwire

ROOT = Path(__file__).parents[2]


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process group of one process, in its own folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def evaluate(page: str, names: dict[str, object]) -> int:
    """Run every Python block of a page with these names defined; returns their number."""
    document = Sybil(parsers=[PythonCodeBlockParser()]).parse(ROOT / page)
    document.namespace.update(names)
    examples = list(document.examples())
    for example in examples:
        example.evaluate()
    return len(examples)


def test_the_readme_trains(alone: None) -> None:
    names = {"torch": torch, "net": nn.Linear(4, 4), "loader": [torch.zeros(1)], "rank": 0}
    assert evaluate("README.md", names)
    assert os.path.exists("rank0.pt")


def test_a_job_with_rejoining_ranks_trains(alone: None) -> None:
    model = DistributedDataParallel(nn.Linear(4, 4))
    names = {"torch": torch, "gradwire": gradwire, "model": model, "steps": 5, "batch": lambda: torch.ones(2, 4)}
    names |= {"DistributedDataParallel": DistributedDataParallel, "net": nn.Linear(4, 4)}
    assert evaluate("docs/howto/faults.md", names) == 3


def test_a_job_with_local_steps_trains(alone: None) -> None:
    names = {"torch": torch, "gradwire": gradwire, "DistributedDataParallel": DistributedDataParallel}
    deep_net = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    names |= {"net": nn.Linear(4, 4), "batches": [torch.ones(2, 4)] * 25, "deep_net": deep_net}
    names |= {"other_net": nn.Linear(4, 4), "uneven_net": nn.Linear(4, 4)}
    names |= {"spot_net": nn.Linear(4, 4), "endless": itertools.repeat(torch.ones(2, 4))}
    assert evaluate("docs/howto/local-steps.md", names) == 5


def test_a_job_across_offices_trains(alone: None) -> None:
    model = DistributedDataParallel(nn.Linear(4, 4))
    names = {"gradwire": gradwire, "model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}
    assert evaluate("docs/howto/two-offices.md", names) == 1


def test_a_job_with_equal_weights_starts(alone: None) -> None:
    names = {"torch": torch, "nn": nn, "gradwire": gradwire, "DistributedDataParallel": DistributedDataParallel}
    assert evaluate("docs/howto/start.md", names) == 1


@pytest.mark.parametrize("page", ["docs/howto/planner.md", "docs/howto/compressor.md"])
def test_a_guides_code_runs(page: str) -> None:
    assert evaluate(page, {"__name__": "guide"}) >= 2
