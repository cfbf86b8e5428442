"""Which ranks form a site, and the groups inside it: they take CPU tensors whatever the job's own group takes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gradwire.errors import ConfigError
from gradwire.sites.topology import SiteTopology, names_from, open_groups, sites_of


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
    cpu_backend = SimpleNamespace(name=lambda: "gloo")
    kinds = [torch.device(name) for name in devices]
    group: Any = SimpleNamespace(_device_types=kinds, _get_backend=lambda device: cpu_backend)
    used: list[str] = []
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [0, 1, 2])
    monkeypatch.setattr(dist, "get_rank", lambda group: 0)
    monkeypatch.setattr(dist, "get_backend", lambda group: own)
    monkeypatch.setattr(dist, "new_group", lambda ranks, timeout, backend: used.append(backend))
    open_groups(SiteTopology(((0, 1), (2,))), group, 1.0)
    assert set(used) == {opened}


def test_a_site_named_on_some_ranks_only_is_an_error() -> None:
    with pytest.raises(ConfigError, match="rank 1"):
        sites_of(["a", "", "b"])
    assert sites_of(["", ""]) is None
    sites = sites_of(["x", "y", "x", "y"])
    assert sites is not None
    assert sites.leaders == (0, 1)
    assert sites.of(2) == (0, 2)


@pytest.mark.parametrize(
    ("text", "match"),
    [("[0, 1]", "cannot be read as"), ('{"a": [0, 1], "b": [1]}', "rank 1"), ('{"a": [0, 2]}', "rank 2")],
)
def test_the_error_of_an_invalid_file_of_sites_names_what_is_wrong(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "sites.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=match):
        names_from(path, 2)
    with pytest.raises(ConfigError, match="cannot be read"):
        names_from(tmp_path / "nowhere.json", 2)
