"""Lanes take the backend that carries what they are for."""

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
    """What torch tells of a group: backends by device."""

    def __init__(self, backends: dict[torch.device, str]) -> None:
        self._backends = backends
        self._device_types = list(backends)

    def _get_backend(self, device: torch.device) -> Backend:
        return Backend(self._backends[device])


@pytest.mark.parametrize(
    ("told", "backends", "host", "device"),
    [
        ("gloo", {CPU: "gloo", CUDA: "gloo"}, "gloo", "gloo"),
        ("nccl", {CUDA: "nccl"}, "gloo", "nccl"),
        ("cpu:gloo,cuda:nccl", {CPU: "gloo", CUDA: "nccl"}, "gloo", "cpu:gloo,cuda:nccl"),
        ("cpu:gloo", {CPU: "gloo"}, "gloo", "gloo"),
        ("undefined", {CPU: "gloo"}, "gloo", "gloo"),
        ("gradwire", {}, "gradwire", "gradwire"),
    ],
)
def test_host_lanes_carry_the_processors_tensors_and_others_the_groups(
    monkeypatch: pytest.MonkeyPatch, told: str, backends: dict[torch.device, str], host: str, device: str
) -> None:
    group: Any = Group(backends)
    monkeypatch.setattr(dist, "get_backend", lambda group: told)
    assert open_lanes.host_backend(group) == host
    assert open_lanes._one_backend(group) == device
