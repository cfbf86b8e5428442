"""Groups inside a site: gradients are on the CPU there, whatever the job's own group takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gradwire.sites.topology import SiteTopology, open_groups


@pytest.mark.parametrize(
    ("own", "devices", "opened"),
    [
        ("nccl", ["cuda"], "gloo"),
        ("gloo", ["cuda", "cpu"], "gloo"),
        ("cpu:gloo,cuda:nccl", ["cpu", "cuda"], "gloo"),
        ("gradwire", [], "gradwire"),
    ],
)
def test_a_site_sums_by_a_backend_that_takes_cpu_tensors(
    monkeypatch: pytest.MonkeyPatch, own: str, devices: list[str], opened: str
) -> None:
    of_the_cpu = SimpleNamespace(name=lambda: "gloo")
    kinds = [torch.device(name) for name in devices]
    group: Any = SimpleNamespace(_device_types=kinds, _get_backend=lambda device: of_the_cpu)
    asked: list[str] = []
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [0, 1, 2])
    monkeypatch.setattr(dist, "get_rank", lambda group: 0)
    monkeypatch.setattr(dist, "get_backend", lambda group: own)
    monkeypatch.setattr(dist, "new_group", lambda ranks, timeout, backend: asked.append(backend))
    open_groups(SiteTopology(((0, 1), (2,))), group, 1.0)
    assert set(asked) == {opened}
