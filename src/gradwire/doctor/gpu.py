"""GPU: `gradwire doctor --gpu` in one process, without other ranks.

Out: the checks of `gpu_checks.py` on CUDA, NCCL beside a gloo lane, copy rates, and how much of a copy compute hides.
Whoever has a GPU gets a pass or an exact report; nothing of this module ran on one yet.
"""

from __future__ import annotations

import threading

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from gradwire.clock import MonotonicClock
from gradwire.device.base import Device, DeviceStream
from gradwire.device.cuda import CudaDevice, find_device
from gradwire.device.event_watcher import EventWatcher
from gradwire.device.pinned_copy import SLOT, Download
from gradwire.doctor.gpu_checks import (
    CheckedDevice,
    CheckFailedError,
    check_kernels,
    copy_rates,
    run_check,
    run_checks,
    seconds_of,
)
from gradwire.doctor.types import GpuReport
from gradwire.errors import ConfigError
from gradwire.transport.lanes.base import AllReduce
from gradwire.transport.lanes.open_lanes import open_lanes

# Clock cycles of a busy stream: some 30 ms, longer than any copy or launch that might overtake it.
BUSY_CYCLES = 50_000_000


class CheckedCuda:
    """The first CUDA device."""

    slot = SLOT

    def __init__(self) -> None:
        self.place = torch.device("cuda", torch.cuda.current_device())
        self.device: Device = CudaDevice(self.place)

    def memory(self, numel: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(numel, dtype=dtype, device=self.place)

    def find(self, tensor: Tensor) -> Device | None:
        return find_device(tensor)

    def occupy(self, stream: DeviceStream) -> None:
        stream.launch(lambda: torch.cuda._sleep(BUSY_CYCLES))


def examine_gpu() -> GpuReport:
    """Check this process's GPU; ConfigError where torch sees none."""
    if not torch.cuda.is_available():
        raise ConfigError(
            f"--gpu: torch {torch.__version__} sees no CUDA device; install a CUDA build of torch on a host with a GPU"
        )
    checked = CheckedCuda()
    checks = [*run_checks(checked), run_check("kernels", lambda: check_kernels(checked))]
    checks.append(run_check("nccl", lambda: check_nccl(checked)))
    to_host, to_device = copy_rates(checked)
    return GpuReport(
        gpu=torch.cuda.get_device_name(checked.place),
        torch=torch.__version__,
        cuda=str(torch.version.cuda or torch.version.hip),
        nccl=".".join(map(str, torch.cuda.nccl.version())) if dist.is_nccl_available() else "none",
        checks=checks,
        to_host=to_host,
        to_device=to_device,
        hidden=hidden_share(checked),
    )


def check_nccl(checked: CheckedDevice) -> str:
    """An all-reduce of NCCL beside a gloo lane, timed by events; a group of this process alone."""
    if not dist.is_nccl_available() or dist.is_initialized():
        return "not checked: torch has no NCCL, or this process is part of a job"
    dist.init_process_group("nccl", store=HashStore(), rank=0, world_size=1)
    clock = MonotonicClock()
    watcher, group = EventWatcher(clock), dist.group.WORLD
    assert group is not None
    try:
        (lane,) = open_lanes(group, 1, 60.0, clock)
        memory, training = checked.memory(1 << 20, torch.float32), checked.device.current_stream()
        checked.occupy(training)
        busy, ended = training.record_event(), list[tuple[bool, float]]()
        began = clock.now()
        done = dist.all_reduce(memory, group=group, async_op=True).get_future()
        queued = clock.now() - began
        done.then(
            lambda one: watcher.watch(
                checked.device.current_stream().record_event(), lambda now: ended.append((busy.query(), now - began))
            )
        )
        lane.start(AllReduce(torch.ones(1000))).wait()
        if not watcher.catch_up(60.0):
            raise CheckFailedError("an all-reduce of NCCL did not end within 60 s")
        lane.close()
        after, seconds = ended[0]
        if not after:
            raise CheckFailedError("the event behind an all-reduce of NCCL was done before the all-reduce could begin")
        times = f"queued in {queued * 1e3:.2f} ms, done by its event after {seconds * 1e3:.1f} ms"
        return f"{times}; a gloo lane ran beside it"
    finally:
        watcher.close()
        dist.destroy_process_group()


def hidden_share(checked: CheckedCuda, nbytes: int = 8 * SLOT) -> float:
    """The share of the shorter of compute and copy that the other hides."""
    matrix = torch.randn(4096, 4096, device=checked.place)
    memory, host = checked.memory(nbytes // 4, torch.float32), torch.zeros(nbytes // 4)
    download, ready = Download(checked.device), checked.device.current_stream().record_event()

    def compute() -> None:
        for _ in range(20):
            matrix @ matrix
        torch.cuda.current_stream(checked.place).synchronize()

    def copy() -> None:
        download.copy(memory, host, ready)

    def both() -> None:
        thread = threading.Thread(target=copy)
        thread.start()
        compute()
        thread.join()

    alone, copied, together = (seconds_of(work) for work in (compute, copy, both))
    return max(0.0, (alone + copied - together) / min(alone, copied))
