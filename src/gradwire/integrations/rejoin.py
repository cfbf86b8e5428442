"""Rejoin: `gradwire.init_process_group`, for jobs whose ranks may be killed and restarted.

    gradwire.init_process_group("gloo")        # instead of torch.distributed's
    model = DistributedDataParallel(net, broadcast_buffers=False)
    handle = gradwire.attach(model, config)    # a plan, planning.elastic
    handle.hand_over(optimizer)
    while handle.step < steps: ...

It does what torch's function does. When a rank died, start it again with the same RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT, and with GRADWIRE_REJOIN=1: then it waits for no other rank, `attach` finds the running job, and the others
send it their weights, optimizer state and step with its first backward. With GRADWIRE_REJOIN=any it takes the lowest
rank that is free, of those that died or that `planning.max_ranks` left empty, and ignores RANK and WORLD_SIZE.

If GRADWIRE_STORE names a store (`gradwire store`), the ranks use it instead of MASTER_ADDR and none of them serves one:
any rank may die, even rank 0.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.rendezvous import rendezvous

from gradwire.errors import ConfigError, LinkError
from gradwire.sites import placeholder_group
from gradwire.sites.job_record import VARIABLE
from gradwire.sites.rank_claim import take_free_rank

STORE: Final = "GRADWIRE_STORE"
ANY_RANK: Final = "any"
# How long to wait for torch's store.
STORE_TIMEOUT: Final = timedelta(seconds=60)


def rejoining() -> bool:
    """Whether this process joins a running job: it replaces one that died, or is one more."""
    return os.environ.get(VARIABLE, "") not in ("", "0")


def init_process_group(backend: str | None = None, init_method: str | None = None, **options: Any) -> None:
    """Like torch's function, with the same arguments; with GRADWIRE_REJOIN=1 or any, join a job that is running
    already."""
    any_rank = os.environ.get(VARIABLE) == ANY_RANK
    if any_rank:
        options |= {"rank": 1, "world_size": 2}  # not 0, which would serve a store; the store says which are free
    if init_method is None and options.get("store") is None and os.environ.get(STORE):
        options |= _own_store(options)
    if not rejoining():
        dist.init_process_group(backend, init_method, **options)
        return
    if os.environ.get("GRADWIRE_BACKEND"):
        raise ConfigError(f"{VARIABLE}: a rank of a gradwire backend cannot rejoin; unset GRADWIRE_BACKEND")
    store, rank, size = options.get("store"), options.get("rank", -1), options.get("world_size", -1)
    if store is None:
        timeout = options.get("timeout") or STORE_TIMEOUT
        found, rank, size = _connect_store(init_method or "env://", rank, size, timeout)
        store = PrefixStore("default_pg", found)  # torch adds this prefix to a store that it connects itself
    placeholder_group.register()
    if any_rank:
        rank, size = _free_rank(store)
    if not 0 <= rank < size:
        raise ConfigError(
            f"{VARIABLE}: RANK is {rank} and WORLD_SIZE {size}; give this process the lost rank's RANK, or "
            f"{VARIABLE}={ANY_RANK}"
        )
    dist.init_process_group(placeholder_group.NAME, store=store, rank=rank, world_size=size)


def _free_rank(store: Store) -> tuple[int, int]:
    """A rank of the job and its number of ranks. torch gives every default group its own part of a store, so a group of
    this process alone shows which part is the job's."""
    dist.init_process_group(placeholder_group.NAME, store=store, rank=0, world_size=1)
    try:
        return take_free_rank(dist.distributed_c10d._get_default_store(), STORE_TIMEOUT.total_seconds())
    finally:
        dist.destroy_process_group()


def _own_store(options: dict[str, Any]) -> dict[str, Any]:
    """The store that GRADWIRE_STORE names, this rank and the world size. Each restart of a job has its own prefix."""
    text = os.environ[STORE]
    host, _, port = text.rpartition(":")
    try:
        address = host.strip("[]"), int(port)
        rank = int(os.environ["RANK"]) if options.get("rank", -1) < 0 else options["rank"]
        size = int(os.environ["WORLD_SIZE"]) if options.get("world_size", -1) < 0 else options["world_size"]
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{STORE}={text}: write host:port, and set RANK and WORLD_SIZE ({error})") from error
    try:
        found = TCPStore(*address, is_master=False, timeout=options.get("timeout") or STORE_TIMEOUT)
    except RuntimeError as error:
        raise LinkError(f"{STORE}={text}: no store answers there; start one: gradwire store --host HOST") from error
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return {"store": PrefixStore(f"life/{restarts}", found), "rank": rank, "world_size": size}


def _connect_store(init_method: str, rank: int, size: int, timeout: timedelta) -> tuple[Store, int, int]:
    """Connect to the job's store as torch does, but never serve one: torch's rank 0 would, and the store exists."""
    if init_method != "env://" or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        found: tuple[Store, int, int] = next(iter(rendezvous(init_method, rank, size, timeout=timeout)))
        return found
    try:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        rank = int(os.environ["RANK"]) if rank < 0 else rank
        size = int(os.environ["WORLD_SIZE"]) if size < 0 else size
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"{VARIABLE}: MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE must be those of the rank that died: {error}"
        ) from error
    return TCPStore(address, port, is_master=False, timeout=timeout), rank, size
