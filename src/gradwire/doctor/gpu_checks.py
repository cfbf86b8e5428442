"""GPU checks: whether a device does what gradwire expects of it, bit by bit, and how fast.

In: a device with memory and a way to keep a stream busy. Out: one result per check. `tests/doctor/test_gpu_checks.py`
runs the checks on the simulated device, also on one that leaves out a wait: a check must find each.

Each check keeps a stream busy first, so that work which does not wait for it comes too early.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from msgspec.structs import replace
from torch import Tensor
from torch.futures import Future

from gradwire.compress.device_codec import load_kernels
from gradwire.config import CompressConfig
from gradwire.device.base import Device, DeviceEvent, DeviceStream
from gradwire.device.pinned_copy import SLOT, Download, Upload
from gradwire.doctor.gpu_exchange import exchanged
from gradwire.doctor.types import GpuCheck
from gradwire.errors import ConfigError

TYPES = (torch.float32, torch.float16, torch.bfloat16)
KERNEL_LEVELS = ("int8", "int4", "int2", "fp16", "bf16", "topk:0.03+int8", "topk:0.1+int4", "exactk:0.01")
# Those whose kernels write residuals in different ways.
RESIDUAL_LEVELS = ("int8", "fp16", "topk:0.03+int8")
ON_GPU = CompressConfig(encode="gpu")
RESIDUALS = (replace(ON_GPU, residual_type="bfloat16"), replace(ON_GPU, residual_memory="host"))
LEVELS = ("int8", "int4", "topk:0.05+int8", "lowrank:2", "fp16")
NUMEL = 100_003  # no multiple of any block


class CheckedDevice(Protocol):
    """A device, and what the checks need beside it."""

    device: Device
    slot: int

    def memory(self, numel: int, dtype: torch.dtype) -> Tensor:
        """Zeros in device memory."""
        ...

    def find(self, tensor: Tensor) -> Device | None: ...

    def occupy(self, stream: DeviceStream) -> None:
        """Keep the stream busy for long enough that work which does not wait for it overtakes it."""
        ...


class CheckFailedError(Exception):
    """A check found something wrong; its text goes to the report."""


def run_checks(checked: CheckedDevice) -> list[GpuCheck]:
    """All checks that need one device; one that fails does not end the others."""
    checks: dict[str, Callable[[CheckedDevice], str]] = {
        "copies": check_copies,
        "order": check_order,
        "futures": check_futures,
        "callbacks": check_callbacks,
        "exchange": check_exchange,
    }
    return [run_check(name, partial(check, checked)) for name, check in checks.items()]


def run_check(name: str, check: Callable[[], str]) -> GpuCheck:
    try:
        return GpuCheck(name, True, check())
    except CheckFailedError as error:
        return GpuCheck(name, False, str(error))
    except Exception as error:  # whatever a driver raises is a result of the check
        return GpuCheck(name, False, f"{type(error).__name__}: {error}")


def check_copies(checked: CheckedDevice) -> str:
    """Bytes survive the way to the device and back, for sizes around those of a slot."""
    download, upload = Download(checked.device, checked.slot), Upload(checked.device, checked.slot)
    sizes = [0, 1, checked.slot // 4 - 1, checked.slot // 4, checked.slot // 4 + 1, 3 * checked.slot // 4 + 7]
    for dtype in TYPES:
        for numel in sizes:
            values, back = _values(numel, dtype), torch.zeros(numel, dtype=dtype)
            memory = checked.memory(numel, dtype)
            upload.copy(values, memory)
            download.copy(memory, back, upload.stream.record_event())
            _compare(back, values, f"{numel} values of {dtype} came back from the device changed")
    return f"{len(sizes)} sizes of {len(TYPES)} types came back unchanged"


def check_order(checked: CheckedDevice) -> str:
    """A copy to the host that waits for an event sees what the training stream computed before it."""
    training, values = checked.device.current_stream(), _values(NUMEL, torch.float32)
    computed, back = _on_device(checked, values), torch.zeros(NUMEL)
    memory = checked.memory(NUMEL, torch.float32)
    checked.occupy(training)
    training.launch(lambda: memory.copy_(computed))
    Download(checked.device, checked.slot).copy(memory, back, training.record_event())
    _compare(back, values, "a copy to the host did not wait for the event of the training stream")
    return "a copy to the host waited for the event of a busy training stream"


def check_futures(checked: CheckedDevice) -> str:
    """Whoever waits for a future has its stream wait for the stream that completed it."""
    upload, values = Upload(checked.device, checked.slot), _values(NUMEL, torch.float32)
    memory, seen = checked.memory(NUMEL, torch.float32), checked.memory(NUMEL, torch.float32)
    checked.occupy(upload.stream)
    upload.copy(values, memory)
    future = checked.device.future()
    checked.device.complete(future, memory, upload.stream)
    future.wait()
    training = checked.device.current_stream()
    training.launch(lambda: seen.copy_(memory))
    _compare(_read(checked, seen), values, "a stream did not wait for the stream that completed a future")
    return "a stream that waited for a future waited for the stream that completed it"


def check_callbacks(checked: CheckedDevice) -> str:
    """A future's callback has a current stream that waits for the operation: the times of NCCL depend on it."""
    side, events = checked.device.new_stream("side"), list[DeviceEvent]()
    checked.occupy(side)
    memory, future = checked.memory(1, torch.float32), checked.device.future()

    def queued(done: Future[Tensor]) -> Tensor:
        events.append(checked.device.current_stream().record_event())
        return done.value()

    last = future.then(queued)
    checked.device.complete(future, memory, side)
    last.wait()
    before, end = events[0].query(), side.record_event()
    end.synchronize()
    events[0].synchronize()
    if before:
        raise CheckFailedError("a callback's stream was done before the operation: times of all-reduces are too short")
    return "an event of a future's callback was done after the operation, not before"


def check_exchange(checked: CheckedDevice) -> str:
    """Two ranks in this process get the same bits from buckets of the device as from buckets of host memory."""
    _check_levels(checked, LEVELS, CompressConfig())
    return f"{len(LEVELS)} levels: buckets of the device got the bits that buckets of host memory get"


def check_kernels(checked: CheckedDevice) -> str:
    """As `check_exchange`, with frames that are encoded and decoded on the device (compress.encode = "gpu"); then with
    residuals in bfloat16, and in host memory."""
    try:
        load_kernels()
    except ConfigError as error:
        return f"not checked: {error}"
    _check_levels(checked, KERNEL_LEVELS, ON_GPU)
    for compress in RESIDUALS:
        _check_levels(checked, RESIDUAL_LEVELS, compress)
    return f"{len(KERNEL_LEVELS)} levels: kernels of the device wrote the bits that the CPU's write"


def _check_levels(checked: CheckedDevice, levels: Sequence[str], compress: CompressConfig) -> None:
    training = checked.device.current_stream()

    def compute(gradient: Tensor) -> Tensor:
        computed, memory = _on_device(checked, gradient), checked.memory(gradient.numel(), gradient.dtype)
        checked.occupy(training)
        training.launch(lambda: memory.copy_(computed))
        return memory

    for level in levels:
        for dtype in TYPES[: 2 if level == "int8" else 1]:
            host = replace(compress, encode="host", residual_memory="auto")
            expected = exchanged(level, NUMEL, dtype, Tensor.clone, Tensor.clone, lambda tensor: None, host)
            found = exchanged(level, NUMEL, dtype, compute, partial(_read, checked), checked.find, compress)
            for one, other in zip(found, expected, strict=True):
                _compare(one, other, f"{level} of {dtype}: the device's buckets got other means than host memory's")


def copy_rates(checked: CheckedDevice, nbytes: int = 8 * SLOT) -> tuple[float, float]:
    """Bytes per second to the host and to the device, through the pinned slots."""
    numel = nbytes // 4
    host, memory = torch.zeros(numel), checked.memory(numel, torch.float32)
    download, upload = Download(checked.device, checked.slot), Upload(checked.device, checked.slot)

    def to_host() -> None:
        download.copy(memory, host, checked.device.current_stream().record_event())

    def to_device() -> None:
        upload.copy(host, memory)
        upload.stream.record_event().synchronize()

    return nbytes / seconds_of(to_host), nbytes / seconds_of(to_device)


def seconds_of(work: Callable[[], None]) -> float:
    """How long it takes the second time: the first pins slots and loads kernels."""
    work()
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _values(numel: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(numel)).to(dtype)


def _on_device(checked: CheckedDevice, values: Tensor) -> Tensor:
    """The values in device memory; returns when they are there."""
    memory, upload = checked.memory(values.numel(), values.dtype), Upload(checked.device, checked.slot)
    upload.copy(values, memory)
    upload.stream.record_event().synchronize()
    return memory


def _read(checked: CheckedDevice, memory: Tensor) -> Tensor:
    """What the training stream leaves in device memory, in host memory."""
    host = torch.zeros(memory.numel(), dtype=memory.dtype)
    Download(checked.device, checked.slot).copy(memory, host, checked.device.current_stream().record_event())
    return host


def _compare(found: Tensor, expected: Tensor, problem: str) -> None:
    if not torch.equal(found, expected):
        wrong = int((found != expected).sum())
        first = int((found != expected).nonzero()[0])
        raise CheckFailedError(
            f"{problem}: {wrong} of {found.numel()} differ, the first is element {first}: "
            f"{found[first].item():g} instead of {expected[first].item():g}"
        )
