"""Notes: what ranks tell each other through torch's store before they have a wire of their own.

Values are JSON and are parsed against a type; what cannot be parsed is a LinkError. Never pickle: whoever reaches the
store's port can write to it. Every wait has a deadline. Each meeting of a group has a prefix of its own, so that groups
and repeated meetings never read each other's notes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from gradwire.errors import LinkError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

T = TypeVar("T")
PATIENCE: Final = 60.0


class StoreExchange:
    """One rank's side of one meeting. `patience` is how many seconds all waits together may take."""

    def __init__(self, store: Store, rank: int, world_size: int, patience: float = PATIENCE) -> None:
        self.rank = rank
        self.world_size = world_size
        self.patience = patience
        self._store = store
        self._deadline = time.monotonic() + patience

    @classmethod
    def open(cls, store: Store, name: str, rank: int, world_size: int, patience: float = PATIENCE) -> StoreExchange:
        """The next meeting of the group called `name`; its members open the same ones in the same order."""
        from torch._C._distributed_c10d import PrefixStore

        group = PrefixStore(f"gradwire/{name}", store)
        number = group.add(f"meetings/{rank}", 1)
        return cls(PrefixStore(str(number), group), rank, world_size, patience)

    @property
    def left(self) -> float:
        """Seconds until patience ends; never quite zero, because torch takes zero for "for ever"."""
        return max(0.05, self._deadline - time.monotonic())

    def tell(self, key: str, value: object) -> None:
        self._store.set(f"{key}/{self.rank}", msgspec.json.encode(value).decode())

    def hear(self, key: str, rank: int, kind: type[T]) -> T:
        """What a rank told under `key`; waits for it."""
        return self._hear(key, [rank], kind)[0]

    def hear_all(self, key: str, kind: type[T]) -> list[T]:
        """What every rank told under `key`, by rank; waits for them."""
        return self._hear(key, range(self.world_size), kind)

    def gather(self, key: str, value: object, kind: type[T]) -> list[T]:
        """Tell and hear."""
        self.tell(key, value)
        return self.hear_all(key, kind)

    def _hear(self, key: str, ranks: Sequence[int], kind: type[T]) -> list[T]:
        """All of them in two round trips to the store, however many they are: it may be far away."""
        keys = [f"{key}/{rank}" for rank in ranks]
        try:
            self._store.wait(keys, timedelta(seconds=self.left))
            together = self._store.has_extended_api()  # type: ignore[attr-defined]  # missing in torch's stubs
            values = self._store.multi_get(keys) if together else [self._store.get(each) for each in keys]
        except RuntimeError as error:
            rank = self._missing(key, ranks)
            raise LinkError(
                f"rank {self.rank} waited {self.patience:g} s for the {key} of rank {rank}: it did not get this far; "
                "look at that rank's own output"
            ) from error
        return [self._parsed(key, rank, value, kind) for rank, value in zip(ranks, values, strict=True)]

    def _missing(self, key: str, ranks: Sequence[int]) -> int:
        """The first that told nothing; the first of all where the store does not answer either."""
        try:
            return next(rank for rank in ranks if not self._store.check([f"{key}/{rank}"]))
        except (RuntimeError, StopIteration):
            return ranks[0]

    @staticmethod
    def _parsed(key: str, rank: int, value: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(value, type=kind)
        except msgspec.DecodeError as error:
            raise LinkError(f"the {key} of rank {rank} cannot be read ({error}); another gradwire version?") from error
