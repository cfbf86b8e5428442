"""Fixed top-k with error feedback, as usually implemented: torch operations and two all-gathers per bucket.

The baseline of NetSenseML and many others. Values travel as fp32 and places as int32 (half of torch's own int64).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket


class FixedTopK:
    """State of the hook: the residual of each bucket, keyed by its parameters since DDP rebuilds buckets once."""

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio
        self._residuals: dict[tuple[int, ...], Tensor] = {}

    def residual(self, bucket: GradBucket) -> Tensor:
        key = tuple(map(id, bucket.parameters()))
        if key not in self._residuals:
            self._residuals[key] = torch.zeros_like(bucket.buffer())
        return self._residuals[key]

    @staticmethod
    def hook(state: FixedTopK, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        """1. add the residual, 2. select the largest, 3. keep the rest, 4. all-gather, 5. sum all ranks' parts."""
        buffer, world = bucket.buffer(), dist.get_world_size()
        residual = state.residual(bucket)
        residual.add_(buffer)  # 1
        count = max(1, int(state.ratio * buffer.numel()))
        places = residual.abs().topk(count, sorted=False).indices  # 2
        values = residual[places]
        residual[places] = 0.0  # 3
        all_values, all_places = values.new_empty(world, count), torch.empty(world, count, dtype=torch.int32)
        works = [
            dist.all_gather(list(all_values.unbind()), values, async_op=True),
            dist.all_gather(list(all_places.unbind()), places.int(), async_op=True),
        ]  # 4

        def restore(_: object) -> Tensor:
            buffer.zero_()
            for part, where in zip(all_values, all_places, strict=True):
                buffer.index_add_(0, where, part, alpha=1 / world)
            return buffer

        futures = [work.get_future() for work in works]
        gathered: torch.futures.Future[Any] = torch.futures.collect_all(futures)
        return gathered.then(restore)  # 5


FixedTopK.hook.__annotations__ = {
    "state": FixedTopK, "bucket": GradBucket, "return": torch.futures.Future[Tensor],
}  # fmt: skip
