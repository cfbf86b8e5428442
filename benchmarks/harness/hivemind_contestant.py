"""hivemind contestant, if installed: its decentralized averager, values as fp16, all ranks in one group.

The whole gradient is one bucket, averaged at the end of backward as hivemind's optimizers do. Its traffic goes through
a separate daemon, so its bytes appear in the link counters and not in this process's sockets.
"""

from __future__ import annotations

import os
import secrets
import socket
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

STEP_SECONDS = 120.0


class HivemindContestant:
    """Installed on one DDP model."""

    def __init__(self, model: DistributedDataParallel) -> None:
        import hivemind
        from hivemind.averaging import DecentralizedAverager
        from hivemind.compression import Float16Compression

        world, here = dist.get_world_size(), [f"/ip4/{own_address()}/tcp/0"]
        shared: list[Any] = [None, secrets.token_hex(4)]
        self._dht = None
        if dist.get_rank() == 0:
            self._dht = hivemind.DHT(host_maddrs=here, start=True)
            shared[0] = [str(address) for address in self._dht.get_visible_maddrs()]
        dist.broadcast_object_list(shared, 0)
        if self._dht is None:
            self._dht = hivemind.DHT(host_maddrs=here, initial_peers=shared[0], start=True)
        size = sum(parameter.numel() for parameter in model.module.parameters())
        self._averager = DecentralizedAverager(
            [torch.zeros(size)], self._dht, start=True, prefix=f"bench{shared[1]}", min_group_size=world,
            target_group_size=world, compression=Float16Compression(), min_matchmaking_time=1.0,
        )  # fmt: skip
        model.register_comm_hook(self._averager, _hook)
        dist.barrier()

    def predicted(self) -> int | None:
        return None

    def levels(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        dist.barrier()
        self._averager.shutdown()
        if self._dht is not None:
            self._dht.shutdown()


def _hook(state: Any, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    buffer = bucket.buffer()
    with state.get_tensors() as tensors:
        tensors[0][: buffer.numel()].copy_(buffer)
    if state.step(timeout=STEP_SECONDS) is None:
        raise RuntimeError("hivemind found no group")
    with state.get_tensors() as tensors:
        buffer.copy_(tensors[0][: buffer.numel()])
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(buffer)
    return future


_hook.__annotations__ = {"bucket": GradBucket, "return": torch.futures.Future[Tensor]}


def own_address() -> str:
    """The address from which packets to MASTER_ADDR leave."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["MASTER_ADDR"], 9))
        return str(probe.getsockname()[0])
