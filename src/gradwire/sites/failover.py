"""Succession: a site that lost a rank goes on: under its leader, or under the next one if the leader died.

In: parcels, as a site takes them, and a way to found the site anew. Out: the same parcels done, by whichever site is
there to do them. When a collective inside the site fails, the ranks that are left

    1. close their connections inside the site, so that all of them notice, and wait until the step is whole here
    2. agree in torch's store on who is left: those who said so before the first of them closed the list. Who is known
       to be dead is not waited for, who is known to live is waited for longer
    3. make groups of their own, without a word of the dead
    4. if the leader lives, it goes on where it was, with those who are left (`resume`)
       if not, they do the step again: the lowest of them leads, comes to the other sites as one that was cut off, and
       is handed everything, which it hands on (`site.Inheritance`)
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Final

import msgspec
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import ProcessGroupGloo

from gradwire.errors import GradwireError, LinkError
from gradwire.sites.local_reduce import LocalReducer, SiteError
from gradwire.sites.step_resume import StepPosition
from gradwire.transport.bootstrap.rendezvous import RankAddress, check_place
from gradwire.tree.request import BucketRequest
from gradwire.tree.state_transfer import TransferableState

# How often the store is looked at while others are waited for.
LOOK: Final = 0.1
# How long a thread of this file is waited for at the end: it may be in the middle of a call to the store.
ENOUGH: Final = 10.0
# How often a rank that does not come is asked whether it lives.
ASK: Final = 1.0
# Of these ranks: those that are dead, those that live.
Ask = Callable[[Sequence[int]], tuple[set[int], set[int]]]


def nobody_knows(ranks: Sequence[int]) -> tuple[set[int], set[int]]:
    return set(), set()


# Founds the site for the n-th time; LinkError when there is nothing to found.
Found = Callable[[int], LocalReducer]


class SiteFailover:
    """One rank's part in a site that outlives its leader. Safe to use from several threads."""

    def __init__(self, site: LocalReducer, found: Found, patience: float) -> None:
        self._site, self._found, self._patience = site, found, patience
        self._estate: TransferableState | None = None
        self._generation = 0
        self._step: list[BucketRequest] = []
        self._told: set[int] = set()
        self._broken = self._closed = False
        self._changed = threading.Condition()
        self._mending: threading.Thread | None = None
        self._abandoned: list[LocalReducer] = []

    def hand_over(self, estate: TransferableState) -> TransferableState:
        """As a site does; without this nothing is founded anew."""
        self._estate = estate
        return self._site.hand_over(estate)

    def submit(self, parcel: BucketRequest) -> None:
        with self._changed:
            if self._whole:
                self._step, self._told = [], set()
            self._step.append(parcel)
            self._changed.notify_all()
            if self._broken:
                return  # the next site takes it with the others
            site, generation = self._site, self._generation
        site.submit(replace(parcel, done=partial(self._done, parcel, generation)))

    def resend(self) -> None:
        self._site.resend()

    @property
    def site(self) -> LocalReducer:
        """The one that has the parcels."""
        return self._site

    def position(self) -> StepPosition:
        """Where this rank stands, once the step is whole."""
        with self._changed:
            return StepPosition(self._step[0].bucket.step, len(self._told), self._site.attempts.summed)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            mending = self._mending
        if mending is not None:
            mending.join(ENOUGH)
        for site in self._abandoned:
            site.close(1.0)  # what is still under way there waits for the dead
        self._site.close()

    @property
    def _whole(self) -> bool:
        return bool(self._step) and self._step[-1].bucket.is_last

    def _done(self, parcel: BucketRequest, generation: int, error: BaseException | None) -> None:
        with self._changed:
            if generation != self._generation or (self._broken and isinstance(error, SiteError)):
                return
            mend = isinstance(error, SiteError) and self._estate is not None
            if mend:
                self._broken = True
                self._mending = threading.Thread(target=self._mend, name="gradwire-succession", daemon=True)
                self._mending.start()
            elif parcel.bucket.index in self._told:
                return  # told by an earlier site
            else:
                self._told.add(parcel.bucket.index)
        if not mend:
            parcel.done(error)

    def _mend(self) -> None:
        old, generation = self._site, self._generation + 1
        old.abandon()  # 1
        self._abandoned.append(old)
        try:
            with self._changed:
                if not self._changed.wait_for(lambda: self._whole or self._closed, self._patience):
                    raise LinkError(f"a rank of this site is gone, and the step did not end in {self._patience:g} s")
                if self._closed:
                    raise LinkError("a rank of this site is gone, and the job ends here")
            old.settle(self._patience)
            site = self._found(generation)  # 2, 3
        except Exception as error:  # the top of this thread: everybody who waits hears it
            self._give_up(error if isinstance(error, GradwireError) else LinkError(f"this site cannot go on: {error}"))
            return
        with self._changed:
            self._site, self._generation, self._broken = site, generation, False
            parcels = list(self._step)
        for parcel in parcels:  # 4
            site.submit(replace(parcel, done=partial(self._done, parcel, generation)))

    def _give_up(self, error: GradwireError) -> None:
        with self._changed:
            self._generation += 1
            left = [parcel for parcel in self._step if parcel.bucket.index not in self._told]
            self._told.update(parcel.bucket.index for parcel in left)
        for parcel in left:
            parcel.done(error)


@dataclass(frozen=True, slots=True)
class FailoverStore:
    """Where the ranks of a site find out who is left; `patience` is for those of whom nothing is known, `ask` finds out
    who is dead and who lives."""

    store: Store
    name: str
    patience: float
    timeout: float
    ask: Ask = nobody_knows

    def survivors(self, candidates: Sequence[int], rank: int, generation: int) -> list[int]:
        """The same list on all of them; LinkError for one that came too late to be in it."""
        book = PrefixStore(f"gradwire/succession/{self.name}/{generation}", self.store)
        book.set(f"here/{rank}", "1")
        deadline, asked = time.monotonic() + self.patience, -math.inf
        dead: set[int] = set()
        alive: set[int] = set()
        while not book.check(["members"]):
            here = [one for one in candidates if book.check([f"here/{one}"])]
            missing, now = set(candidates) - set(here), time.monotonic()
            if missing and now - asked >= ASK:
                asked, (dead, alive) = now, self.ask(sorted(missing))
            limit = deadline + (self.timeout / 2 if missing & alive else 0.0)
            if here[0] == rank and (missing <= dead or now > limit):
                book.compare_set("members", "", msgspec.json.encode(here).decode())
            elif now > deadline + self.timeout:
                raise LinkError(f"rank {here[0]} of this site did not say who is left")
            time.sleep(LOOK)
        members = msgspec.json.decode(book.get("members"), type=list[int])
        if rank not in members:
            raise LinkError(f"rank {rank} came too late: its site went on with ranks {members}")
        return members

    def positions(self, members: Sequence[int], rank: int, generation: int, own: StepPosition) -> list[StepPosition]:
        """Where all of them stand, in their order."""
        book = PrefixStore(f"gradwire/succession/{self.name}/{generation}", self.store)
        book.set(f"at/{rank}", msgspec.json.encode(own).decode())
        keys = [f"at/{member}" for member in members]
        book.wait(keys, timedelta(seconds=self.timeout))
        return [msgspec.json.decode(book.get(key), type=StepPosition) for key in keys]

    def groups(self, members: Sequence[int], rank: int, generation: int) -> list[dist.ProcessGroup]:
        """Two groups of these ranks, made without any other's help."""
        book = PrefixStore(f"gradwire/succession/{self.name}/{generation}", self.store)
        limit = timedelta(seconds=self.timeout)
        place, size = members.index(rank), len(members)
        return [ProcessGroupGloo(PrefixStore(name, book), place, size, limit) for name in ("sum", "share")]  # type: ignore[misc]


class LeaderRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a rank needs to know to speak for its site: told by the leader while it lives.

    `secret` is a drawn one; one that the user gave every rank has itself, and it is never sent.
    """

    kind: str
    secret: str
    places: dict[int, tuple[str, int]]
    plan: str


class AddressBook:
    """Who speaks for which site from where, since the last leader died. A thread looks: a store may not answer."""

    def __init__(self, store: Store, name: str) -> None:
        self.places: dict[int, tuple[str, int]] = {}
        self._book = PrefixStore(f"gradwire/lead/{name}", store.clone() if hasattr(store, "clone") else store)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def tell(self, member: int, place: tuple[str, int]) -> None:
        self._book.set(str(member), msgspec.json.encode(place).decode())

    def watch(self, missing: Callable[[], Iterable[int]]) -> None:
        """Look for those who are missing once a second, until closed or until there is no store any more."""
        self._thread = threading.Thread(target=self._run, args=(missing,), name="gradwire-whereabouts", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(ENOUGH)

    def _run(self, missing: Callable[[], Iterable[int]]) -> None:
        while not self._stop.wait(1.0):
            try:
                self.look(list(missing()))
            except RuntimeError:
                return

    def look(self, members: Iterable[int]) -> None:
        """What is no address is nobody's: the store takes anything from anybody."""
        for member in members:
            if self._book.check([str(member)]):
                with suppress(msgspec.DecodeError, LinkError):
                    address, port = msgspec.json.decode(self._book.get(str(member)), type=tuple[str, int])
                    check_place(member, RankAddress(address, port))
                    self.places[member] = address, port
