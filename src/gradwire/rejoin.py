"""The fourth door: `gradwire.init_process_group`, for jobs whose ranks may be killed and started anew.

    gradwire.init_process_group("gloo")        # instead of torch.distributed's
    model = DistributedDataParallel(net, broadcast_buffers=False)
    handle = gradwire.attach(model, config)    # a plan, planning.elastic
    handle.hand_over(optimizer)
    while handle.step < steps: ...

It is torch's, until a rank dies. Whoever starts that rank again (with the same RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT) sets GRADWIRE_REJOIN=1: then nobody is waited for, `attach` finds the running job, and the others hand this
rank their weights, optimizer and step with its first backward.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from gradwire.collective import absent
from gradwire.standing import VARIABLE

# How long torch's store is waited for.
PATIENCE: Final = timedelta(seconds=60)


def rejoining() -> bool:
    """Whether this process was started in the place of one that died."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


def init_process_group(backend: str | None = None, init_method: str | None = None, **options: Any) -> None:
    """As torch's, with the same arguments; with GRADWIRE_REJOIN=1, a place in a job that runs already."""
    if not rejoining():
        dist.init_process_group(backend, init_method, **options)
        return
    store = options.get("store")
    rank, size = options.get("rank", -1), options.get("world_size", -1)
    if store is None:
        asked = rendezvous(init_method or "env://", rank, size, timeout=options.get("timeout") or PATIENCE)
        store, rank, size = next(iter(asked))
    absent.register()
    dist.init_process_group(absent.NAME, store=store, rank=rank, world_size=size)
