"""StoreExchange: publish, read, gather and barrier between ranks through torch's store.

Values are JSON and are parsed against a type; what cannot be parsed is a LinkError. Never pickle: anybody who reaches
the store's port can write to it. Every wait has a deadline. Each exchange of a group has its own key prefix, so that
groups and repeated exchanges never read each other's values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from gradwire.errors import LinkError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store
    from torch.distributed import ProcessGroup

T = TypeVar("T")
# Of some ranks, those that are gone.
FindGone = Callable[[Sequence[int]], set[int]]
TIMEOUT: Final = 60.0
# A wait looks for lost ranks after this many seconds, then after twice as many, and so on.
_FIRST_LOOK: Final = 1.0
# Seconds between two checks of rank 0 whether the others have left.
_POLL: Final = 0.02


class StoreExchange:
    """One rank's side of one exchange. All waits together take at most `timeout` seconds; with `per_wait`, each does.

    `per_wait` is for exchanges with long work between the waits.
    """

    def __init__(
        self, store: Store, rank: int, world_size: int, timeout: float = TIMEOUT, *, per_wait: bool = False
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.timeout = timeout
        self._store = store
        self._per_wait = per_wait
        self._deadline = time.monotonic() + timeout
        # Set while training, when a rank may have ended meanwhile: nobody waits for it until the deadline.
        self.find_gone: FindGone | None = None

    @classmethod
    def open(cls, store: Store, name: str, rank: int, world_size: int, timeout: float = TIMEOUT) -> StoreExchange:
        """The next exchange of the group called `name`; its members open the same ones in the same order."""
        from torch._C._distributed_c10d import PrefixStore

        group = PrefixStore(f"gradwire/{name}", store)
        number = group.add(f"exchanges/{rank}", 1)
        return cls(PrefixStore(str(number), group), rank, world_size, timeout)

    @classmethod
    def for_group(
        cls, group: ProcessGroup, name: str, timeout: float, *, own_connection: bool = False
    ) -> StoreExchange:
        """The next exchange called `name` among the ranks of `group`, on the job's default store. A wait occupies the
        connection to the store: a thread beside the training thread needs `own_connection`."""
        from torch.distributed import distributed_c10d

        store = distributed_c10d._get_default_store()
        if own_connection:
            store = store.clone()  # type: ignore[attr-defined]  # missing in torch's stubs
        return cls.open(store, f"{name}/{group.group_name}", group.rank(), group.size(), timeout)

    def publish(self, key: str, value: object) -> None:
        """Make `value` readable for the other ranks, as this rank's `key`."""
        self._store.set(f"{key}/{self.rank}", msgspec.json.encode(value).decode())

    def read(self, key: str, rank: int, kind: type[T]) -> T:
        """What `rank` published under `key`; waits for it."""
        return self._read(key, [rank], kind)[0]

    def read_all(self, key: str, kind: type[T]) -> list[T]:
        """What every rank published under `key`, by rank; waits for them."""
        return self._read(key, range(self.world_size), kind)

    def gather(self, key: str, value: object, kind: type[T]) -> list[T]:
        """Publish a value and read those of all ranks."""
        self.publish(key, value)
        return self.read_all(key, kind)

    def barrier(self, name: str, extra: float = 0.0) -> None:
        """Return when every rank has called this; waits `extra` seconds longer than usual, after long work."""
        self.publish(f"{name}/here", True)
        if self._store.add(f"{name}/count", 1) == self.world_size:
            self._store.set(f"{name}/go", "1")
        try:
            self._wait([f"{name}/go"], extra)
        except RuntimeError as error:
            ranks = self._missing(f"{name}/here", range(self.world_size))
            missing = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
            raise LinkError(
                f"{missing} did not reach {name} within {self.timeout + extra:g} s; look at their own output"
            ) from error

    def leave(self) -> None:
        """Call last. Rank 0 may host the store: it waits until the others have left, or for the timeout."""
        if self.rank:
            self._store.add("left", 1)
            return
        deadline = time.monotonic() + self.timeout
        while self._store.add("left", 0) < self.world_size - 1 and time.monotonic() < deadline:
            time.sleep(_POLL)

    def _wait(self, keys: list[str], extra: float = 0.0) -> None:
        left = self.timeout if self._per_wait else self._deadline - time.monotonic()
        # Never quite zero: torch takes zero for "no limit".
        self._store.wait(keys, timedelta(seconds=max(0.05, left + extra)))

    def _wait_for_living(self, key: str, ranks: Sequence[int], find_gone: FindGone) -> None:
        """Wait in slices; LinkError as soon as a rank that published nothing is found to be gone."""
        keys, look = [f"{key}/{rank}" for rank in ranks], _FIRST_LOOK
        while (left := self._deadline - time.monotonic()) > look:
            began = time.monotonic()
            try:
                self._store.wait(keys, timedelta(seconds=look))
            except RuntimeError:
                if time.monotonic() - began < look / 2:  # not the end of the slice: the store itself failed
                    raise
                if gone := find_gone(self._missing(key, ranks)):
                    raise LinkError(f"no {key} from rank {min(gone)}: its process ended") from None
                look = min(2 * look, left)
            else:
                return
        self._wait(keys)

    def _read(self, key: str, ranks: Sequence[int], kind: type[T]) -> list[T]:
        """All of them in two round trips to the store, however many they are: it may be far away."""
        keys = [f"{key}/{rank}" for rank in ranks]
        try:
            if self.find_gone is None:
                self._wait(keys)
            else:
                self._wait_for_living(key, ranks, self.find_gone)
            together = self._store.has_extended_api()  # type: ignore[attr-defined]  # missing in torch's stubs
            values = self._store.multi_get(keys) if together else [self._store.get(each) for each in keys]
        except RuntimeError as error:
            raise LinkError(
                f"rank {self.rank} waited {self.timeout:g} s for the {key} of rank {self._missing(key, ranks)[0]}, "
                "which did not get this far; look at that rank's own output"
            ) from error
        return [self._parsed(key, rank, value, kind) for rank, value in zip(ranks, values, strict=True)]

    def _missing(self, key: str, ranks: Sequence[int]) -> list[int]:
        """Ranks that published nothing; all where the store does not answer either."""
        try:
            return [rank for rank in ranks if not self._store.check([f"{key}/{rank}"])] or list(ranks)
        except RuntimeError:
            return list(ranks)

    @staticmethod
    def _parsed(key: str, rank: int, value: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(value, type=kind)
        except msgspec.DecodeError as error:
            raise LinkError(
                f"the {key} of rank {rank} cannot be read ({error}); do all ranks run the same gradwire version?"
            ) from error
