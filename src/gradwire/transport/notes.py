"""Notes: what ranks tell each other through torch's store before they have a wire of their own.

Values are JSON and are parsed against a type; what cannot be parsed is a LinkError. Never pickle: whoever reaches the
store's port can write to it. Every wait has a deadline. Each meeting of a group has a prefix of its own, so that groups
and repeated meetings never read each other's notes.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from gradwire.errors import LinkError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

T = TypeVar("T")
PATIENCE: Final = 60.0


class Notes:
    """One rank's side of one meeting. `patience` is how many seconds all waits together may take."""

    def __init__(self, store: Store, rank: int, world_size: int, patience: float = PATIENCE) -> None:
        self.rank = rank
        self.world_size = world_size
        self.patience = patience
        self._store = store
        self._deadline = time.monotonic() + patience

    @classmethod
    def open(cls, store: Store, name: str, rank: int, world_size: int, patience: float = PATIENCE) -> Notes:
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
        try:
            self._store.wait([f"{key}/{rank}"], timedelta(seconds=self.left))
            value = self._store.get(f"{key}/{rank}")
        except RuntimeError as error:
            raise LinkError(
                f"rank {self.rank} waited {self.patience:g} s for the {key} of rank {rank}: it did not get this far; "
                "look at that rank's own output"
            ) from error
        try:
            return msgspec.json.decode(value, type=kind)
        except msgspec.DecodeError as error:
            raise LinkError(f"the {key} of rank {rank} cannot be read ({error}); another gradwire version?") from error

    def gather(self, key: str, value: object, kind: type[T]) -> list[T]:
        """Tell and hear: what every rank told, by rank."""
        self.tell(key, value)
        return [self.hear(key, rank, kind) for rank in range(self.world_size)]
