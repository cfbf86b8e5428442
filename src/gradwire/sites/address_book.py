"""AddressBook: the current addresses of members whose process was replaced, through torch's store.

In: a process that takes the place of a lost one publishes its address. Out: `addresses`, in which the others find it.
They read the store on a thread of their own, because a store may not answer. The same thread gives the secret of a job
that drew its own to such a process, and signs of life of this one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

import msgspec
from torch._C._distributed_c10d import PrefixStore, Store

from gradwire.errors import LinkError
from gradwire.sites.rank_claim import LifeSigns
from gradwire.transport.bootstrap.rendezvous import RankAddress, check_address
from gradwire.transport.bootstrap.secret_exchange import SecretAnswers, request_secret

# Seconds between two reads of the store.
POLL: Final = 1.0
# Seconds to wait for the thread at the end: it may be inside a call to the store.
JOIN_TIMEOUT: Final = 10.0


class AddressBook:
    """Address and port by member, for members that moved."""

    def __init__(self, store: Store, name: str) -> None:
        self.addresses: dict[int, tuple[str, int]] = {}
        self._job_store = store.clone() if hasattr(store, "clone") else store
        self._store = PrefixStore(f"gradwire/addresses/{name}", self._job_store)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._answers: SecretAnswers | None = None
        self._signs: LifeSigns | None = None

    def publish(self, member: int, address: tuple[str, int]) -> None:
        self._store.set(str(member), msgspec.json.encode(address).decode())

    def share_secret(self, secret: bytes) -> None:
        """Give the secret to processes that rejoin, from the start of `watch` on."""
        self._answers = SecretAnswers(self._store, secret)

    def show_life(self, rank: int) -> None:
        """Let other processes know that this one runs as `rank` of the job: now, and from the start of `watch` on."""
        self._signs = LifeSigns(self._job_store, rank)
        self._signs.give()

    def request_secret(self, timeout: float) -> bytes:
        """The secret of the running job, from a member that shares it."""
        return request_secret(self._store, timeout)

    def watch(self, missing: Callable[[], Iterable[int]]) -> None:
        """Read the addresses of missing members once a second, until closed or until the store is gone."""
        self._thread = threading.Thread(target=self._run, args=(missing,), name="gradwire-address-book", daemon=True)
        self._thread.start()

    def read(self, members: Iterable[int]) -> None:
        """Anyone can write to the store, so what is not an address is ignored."""
        for member in members:
            if self._store.check([str(member)]):
                with suppress(msgspec.DecodeError, LinkError):
                    address, port = msgspec.json.decode(self._store.get(str(member)), type=tuple[str, int])
                    check_address(member, RankAddress(address, port))
                    self.addresses[member] = address, port

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(JOIN_TIMEOUT)

    def _run(self, missing: Callable[[], Iterable[int]]) -> None:
        while not self._stop.wait(POLL):
            try:
                self.read(list(missing()))
                if self._answers is not None:
                    self._answers.answer()
                if self._signs is not None:
                    self._signs.give()
            except RuntimeError:
                return
