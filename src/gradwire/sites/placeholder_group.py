"""PlaceholderGroup: the process group of a restarted rank, while the others are in the middle of training.

In: what DDP's constructor asks of a group: whether shapes are equal, and rank 0's weights. Out: this rank's own values,
at once. It receives the job's weights with its first step (`job_record`). Every other collective is an error: with a
rank lost, the others' own group could not answer either.
"""

# torch's stubs give these methods several signatures that no Python subclass can have, and miss the options.
# mypy: disable-error-code="override"

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from gradwire.backend.cpu_backend import CpuBackend
from gradwire.backend.work import CollectiveWork, Outputs

NAME = "gradwire-placeholder"


class PlaceholderGroup(CpuBackend):
    """Rank and size as in the job, without any peer."""

    BACKEND = NAME

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> dist.Work:
        return _done(tensors)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> dist.Work:
        for gathered, own in zip(outputs, inputs, strict=True):
            for output in gathered:
                output.copy_(own)
        return _done(outputs)

    def shutdown(self) -> None:
        self.drop_store()

    def abort(self) -> None:
        self.drop_store()


def create(options: Any, _: object = None) -> PlaceholderGroup:
    return PlaceholderGroup(options)


def register() -> None:
    """Make the backend known to `init_process_group`."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu", "cuda"])


def _done(outputs: Outputs) -> CollectiveWork:
    work = CollectiveWork(outputs)
    work.finish()
    return work
