"""torchft contestant, if installed: a quorum before each step, its all-reduce over gloo, a commit.

Every rank is a replica group of its own; rank 0 runs the lighthouse. Weights are equal by construction, so no recovery
takes place, and the measured cost is that of an ordinary step.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket, TCPStore
from torch.nn.parallel import DistributedDataParallel

from harness.hivemind_contestant import own_address

TIMEOUT = timedelta(seconds=120)


class TorchftContestant:
    """Installed on one DDP model. The hook waits for each bucket, as torchft's own DDP does."""

    def __init__(self, model: DistributedDataParallel) -> None:
        from torchft.coordination import LighthouseServer
        from torchft.manager import Manager
        from torchft.process_group import ProcessGroupGloo

        world, rank, address = dist.get_world_size(), dist.get_rank(), own_address()
        self._lighthouse = (
            LighthouseServer(f"{address}:0", min_replicas=world, join_timeout_ms=1000) if not rank else None
        )
        port = self._lighthouse.address().rsplit(":", 1)[1] if self._lighthouse else ""
        self._store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
        self._manager = Manager(
            pg=ProcessGroupGloo(timeout=TIMEOUT), load_state_dict=lambda state: None, state_dict=dict,
            min_replica_size=world, timeout=TIMEOUT, quorum_timeout=TIMEOUT, rank=0, world_size=1,
            store_addr=address, store_port=self._store.port, hostname=address, replica_id=f"rank{rank}",
            init_sync=False, lighthouse_addr=f"http://{os.environ['MASTER_ADDR']}:{_shared(port)}",
        )  # fmt: skip
        self._open = False
        model.module.register_forward_pre_hook(self._begin)
        model.register_comm_hook(self._manager, _hook)

    def _begin(self, module: nn.Module, inputs: Any) -> None:
        """A step ends where the next begins, so the measured time includes the commit and the quorum."""
        if self._open:
            assert self._manager.should_commit()
        self._manager.start_quorum()
        self._open = True

    def predicted(self) -> int | None:
        return None

    def levels(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        self._manager.shutdown()
        dist.barrier()
        if self._lighthouse is not None:
            self._lighthouse.shutdown()


def _hook(state: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    buffer = bucket.buffer()
    state.allreduce(buffer).wait()
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(buffer)
    return future


_hook.__annotations__ = {"bucket": GradBucket, "return": torch.futures.Future[Tensor]}


def _shared(port: str) -> int:
    """Rank 0's lighthouse port, on every rank."""
    value = torch.tensor([int(port or 0)])
    dist.broadcast(value, 0)
    return int(value)
