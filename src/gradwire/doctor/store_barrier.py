"""Meeting: the ranks of a job exchange facts and keep in step through torch's store; JSON only, always deadlines."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from gradwire.errors import ConfigError, LinkError

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
T = TypeVar("T")


class StoreBarrier:
    """One rank's side. `patience` is how long others may keep us waiting."""

    def __init__(self, rank: int, world_size: int, store: Any, patience: float = 60.0) -> None:
        self.rank = rank
        self.world_size = world_size
        self._store = store
        self._patience = patience

    @classmethod
    def join(cls, patience: float = 60.0) -> StoreBarrier:
        """By the variables torchrun sets; ConfigError in one line without them, LinkError when nobody answers."""
        missing = [name for name in VARIABLES if not os.environ.get(name)]
        if missing:
            raise ConfigError(
                f"doctor: {', '.join(missing)} not set; run it on every host as "
                "torchrun --nnodes N --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29500 -m gradwire "
                "doctor, or try it in the lab: gradwire lab run --net lan100 -- python -m gradwire doctor"
            )
        rank, world_size = _whole("RANK"), _whole("WORLD_SIZE")
        if world_size < 2:
            raise ConfigError("doctor: WORLD_SIZE is 1; there is no network between a rank and itself")
        if rank >= world_size:
            raise ConfigError(f"doctor: RANK is {rank} and WORLD_SIZE {world_size}; ranks count from 0")
        from torch._C._distributed_c10d import PrefixStore
        from torch.distributed.rendezvous import rendezvous

        try:
            store, _, _ = next(rendezvous("env://", rank, world_size, timeout=timedelta(seconds=patience)))
        except (RuntimeError, ValueError) as error:
            where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise LinkError(
                f"doctor: rank {rank} found no store at {where} within {patience:g} s; is rank 0 running there, and is "
                f"the port open? ({str(error).splitlines()[0][:160]})"
            ) from error
        # torchrun's store outlives a restart of its workers; what the last attempt told must not be heard again.
        prefix = f"gradwire-doctor/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        return cls(rank, world_size, PrefixStore(prefix, store), patience)

    def tell(self, key: str, value: object) -> None:
        self._store.set(f"{key}/{self.rank}", msgspec.json.encode(value))

    def hear(self, key: str, rank: int, kind: type[T]) -> T:
        """What a rank told; waits for it."""
        deadline = time.monotonic() + self._patience
        self._await(f"{key}/{rank}", deadline, lambda: f"rank {rank} did not tell its {key}")
        try:
            return msgspec.json.decode(self._store.get(f"{key}/{rank}"), type=kind)
        except msgspec.DecodeError as error:
            raise LinkError(f"doctor: rank {rank}'s {key} cannot be read ({error}); other gradwire version?") from error

    def hear_all(self, key: str, kind: type[T]) -> list[T]:
        return [self.hear(key, rank, kind) for rank in range(self.world_size)]

    def gather(self, key: str, value: object, kind: type[T]) -> list[T]:
        self.tell(key, value)
        return self.hear_all(key, kind)

    def together(self, name: str, extra: float = 0.0) -> None:
        """Go on when everybody came here; `extra` seconds more than usual for those with long work before it."""
        self._store.set(f"{name}/here/{self.rank}", b"1")
        if self._store.add(f"{name}/count", 1) == self.world_size:
            self._store.set(f"{name}/go", b"1")
        deadline = time.monotonic() + self._patience + extra
        self._await(f"{name}/go", deadline, lambda: f"rank {self._missing(name)} did not come to {name}")

    def leave(self) -> None:
        """Rank 0 may hold the store: it stays until the others are done with it."""
        if self.rank:
            self._store.add("left", 1)
            return
        deadline = time.monotonic() + self._patience
        while self._store.add("left", 0) < self.world_size - 1 and time.monotonic() < deadline:
            time.sleep(0.02)

    def _missing(self, name: str) -> str:
        return ", ".join(str(r) for r in range(self.world_size) if not self._store.check([f"{name}/here/{r}"]))

    def _await(self, key: str, deadline: float, complaint: Any) -> None:
        try:
            self._store.wait([key], timedelta(seconds=max(0.05, deadline - time.monotonic())))
        except RuntimeError as error:
            raise LinkError(f"doctor: {complaint()} within {self._patience:g} s") from error


def _whole(variable: str) -> int:
    text = os.environ[variable]
    if not text.isdecimal():
        raise ConfigError(f"doctor: {variable} is {text!r}, not a whole number; torchrun and the lab set it")
    return int(text)
