"""Lanes use the backend that serves tensors of host memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from gradwire.transport.lanes import open_lanes

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class Backend:
    def __init__(self, name: str) -> None:
        self._name = name

    def name(self) -> str:
        return self._name


class Group:
    """A group as torch shows it: backends by device."""

    def __init__(self, backends: dict[torch.device, str]) -> None:
        self._backends = backends
        self._device_types = list(backends)

    def _get_backend(self, device: torch.device) -> Backend:
        return Backend(self._backends[device])


@pytest.mark.parametrize(
    ("name", "backends", "host"),
    [
        ("gloo", {CPU: "gloo", CUDA: "gloo"}, "gloo"),
        ("nccl", {CUDA: "nccl"}, "gloo"),
        ("cpu:gloo,cuda:nccl", {CPU: "gloo", CUDA: "nccl"}, "gloo"),
        ("cpu:gloo", {CPU: "gloo"}, "gloo"),
        ("undefined", {CPU: "gloo"}, "gloo"),
        ("gradwire", {}, "gradwire"),
    ],
)
def test_lanes_use_the_groups_cpu_backend_and_gloo_where_it_has_none(
    monkeypatch: pytest.MonkeyPatch, name: str, backends: dict[torch.device, str], host: str
) -> None:
    group: Any = Group(backends)
    monkeypatch.setattr(dist, "get_backend", lambda group: name)
    assert open_lanes.host_backend(group) == host
