"""Lanes use the backend that serves the device of their tensors."""

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
    ("name", "backends", "host", "device"),
    [
        ("gloo", {CPU: "gloo", CUDA: "gloo"}, "gloo", "gloo"),
        ("nccl", {CUDA: "nccl"}, "gloo", "nccl"),
        ("cpu:gloo,cuda:nccl", {CPU: "gloo", CUDA: "nccl"}, "gloo", "cpu:gloo,cuda:nccl"),
        ("cpu:gloo", {CPU: "gloo"}, "gloo", "gloo"),
        ("undefined", {CPU: "gloo"}, "gloo", "gloo"),
        ("gradwire", {}, "gradwire", "gradwire"),
    ],
)
def test_host_lanes_use_the_cpu_backend_and_other_lanes_the_groups(
    monkeypatch: pytest.MonkeyPatch, name: str, backends: dict[torch.device, str], host: str, device: str
) -> None:
    group: Any = Group(backends)
    monkeypatch.setattr(dist, "get_backend", lambda group: name)
    assert open_lanes.host_backend(group) == host
    assert open_lanes._one_backend(group) == device
