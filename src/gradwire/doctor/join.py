"""Join: connects a rank of the doctor to the others through torch's store, by the variables that torchrun sets."""

from __future__ import annotations

import os
from datetime import timedelta

from gradwire.errors import ConfigError, LinkError
from gradwire.transport.bootstrap.store_exchange import TIMEOUT, StoreExchange

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def join_job(timeout: float = TIMEOUT) -> StoreExchange:
    """ConfigError for missing or wrong variables, LinkError when no store answers. Each wait takes up to `timeout`."""
    rank, world_size = _rank_and_world_size()
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    try:
        store, _, _ = next(rendezvous("env://", rank, world_size, timeout=timedelta(seconds=timeout)))
    except (RuntimeError, ValueError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise LinkError(
            f"doctor: rank {rank} found no store at {where} within {timeout:g} s; is rank 0 running there, and is "
            f"the port open? ({str(error).splitlines()[0][:160]})"
        ) from error
    # torchrun's store outlives a restart of its workers; values of the last attempt must not be read again.
    prefix = f"gradwire-doctor/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    return StoreExchange(PrefixStore(prefix, store), rank, world_size, timeout, per_wait=True)


def _rank_and_world_size() -> tuple[int, int]:
    missing = [name for name in VARIABLES if not os.environ.get(name)]
    if missing:
        raise ConfigError(
            f"doctor: {', '.join(missing)} not set; run it on every host as "
            "torchrun --nnodes N --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29500 -m gradwire "
            "doctor, or try it in the lab: gradwire lab run --net lan100 -- python -m gradwire doctor"
        )
    rank, world_size = _whole("RANK"), _whole("WORLD_SIZE")
    if world_size < 2:
        raise ConfigError("doctor: WORLD_SIZE is 1; start at least two ranks, there is no network to measure")
    if rank >= world_size:
        raise ConfigError(f"doctor: RANK is {rank} and WORLD_SIZE {world_size}; ranks count from 0")
    return rank, world_size


def _whole(variable: str) -> int:
    text = os.environ[variable]
    if not text.isdecimal():
        raise ConfigError(f"doctor: {variable} is {text!r}, not a whole number; torchrun and the lab set it")
    return int(text)
