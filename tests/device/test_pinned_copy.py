"""Pinned copy: values arrive whole whatever the sizes, and each of its waits is needed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gradwire.device.pinned_copy import Download, Upload
from tests.device.simulated import SimulatedDevice

SLOT = 64  # bytes
SEEDS = [None, 0, 1, 2]


def computed(device: SimulatedDevice, values: Tensor) -> Tensor:
    """Device memory that gets the values when the training stream has come so far."""
    tensor = device.memory(values.numel(), dtype=values.dtype)
    device.default.launch(lambda: tensor.copy_(values))
    return tensor


def downloaded(device: SimulatedDevice, values: Tensor) -> Tensor:
    target = torch.zeros_like(values)
    source = computed(device, values)
    Download(device, SLOT).copy(source, target, device.default.record_event())
    return target


def uploaded(device: SimulatedDevice, values: Tensor) -> Tensor:
    """What an operation of the training stream reads that waits for the copy."""
    upload, target, read = Upload(device, SLOT), device.memory(values.numel(), dtype=values.dtype), values.clone()
    source = values.clone()
    upload.copy(source, target)
    source.fill_(77)  # the caller may use it again
    device.default.wait_event(upload.stream.record_event())
    device.default.launch(lambda: read.copy_(target))
    device.finish()
    return read


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("numel", [0, 1, 15, 16, 17, 32, 33, 100])
def test_values_of_any_size_and_type_arrive(numel: int, dtype: torch.dtype, seed: int | None) -> None:
    values = torch.arange(1, numel + 1).to(dtype)
    assert torch.equal(downloaded(SimulatedDevice(seed), values), values)
    assert torch.equal(uploaded(SimulatedDevice(seed), values), values)


@pytest.mark.parametrize("left_out", ["wait:download", "host:download"])
def test_a_download_needs_both_of_its_waits(left_out: str) -> None:
    values = torch.arange(1.0, 101.0)
    assert not torch.equal(downloaded(SimulatedDevice(ignore=left_out), values), values)


@pytest.mark.parametrize("left_out", ["wait:training", "host:upload"])
def test_an_upload_needs_both_of_its_waits(left_out: str) -> None:
    values = torch.arange(1.0, 101.0)
    assert not torch.equal(uploaded(SimulatedDevice(ignore=left_out), values), values)


def test_pinned_memory_is_two_slots_a_direction_for_a_bucket_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[int] = []
    device = SimulatedDevice()
    make = device.pinned
    monkeypatch.setattr(device, "pinned", lambda nbytes: (pinned.append(nbytes), make(nbytes))[1])
    download, upload = Download(device, SLOT), Upload(device, SLOT)
    for numel in (10, 10_000):
        tensor, host = device.memory(numel), torch.zeros(numel)
        download.copy(tensor, host, device.default.record_event())
        upload.copy(host, tensor)
    assert pinned == [SLOT] * 4
