"""FailoverStore: the ranks of a site that lost a rank agree in torch's store on who is left.

Members of the next generation are the ranks that registered before the lowest of them closed the list. It does not wait
for ranks that are known to be dead, and waits longer for ranks that are known to live.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import msgspec
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import ProcessGroupGloo

from gradwire.errors import LinkError
from gradwire.sites.step_resume import StepPosition

# Seconds between two reads of the store.
POLL: Final = 0.1
# Seconds between two probes of the missing ranks.
ASK: Final = 1.0
# Of these ranks: those that are dead, and those that live.
AskAlive = Callable[[Sequence[int]], tuple[set[int], set[int]]]


def unknown(ranks: Sequence[int]) -> tuple[set[int], set[int]]:
    return set(), set()


@dataclass(frozen=True, slots=True)
class FailoverStore:
    """`patience` is how long to wait for ranks of which nothing is known; `ask_alive` finds out more."""

    store: Store
    name: str
    patience: float
    timeout: float
    ask_alive: AskAlive = unknown

    def survivors(self, candidates: Sequence[int], rank: int, generation: int) -> list[int]:
        """The same list on all of them; LinkError for a rank that registered too late to be in it."""
        store = self._of(generation)
        store.set(f"here/{rank}", "1")
        deadline, asked = time.monotonic() + self.patience, -math.inf
        dead: set[int] = set()
        alive: set[int] = set()
        while not store.check(["members"]):
            here = [one for one in candidates if store.check([f"here/{one}"])]
            missing, now = set(candidates) - set(here), time.monotonic()
            if missing and now - asked >= ASK:
                asked, (dead, alive) = now, self.ask_alive(sorted(missing))
            limit = deadline + (self.timeout / 2 if missing & alive else 0.0)
            if here[0] == rank and (missing <= dead or now > limit):
                store.compare_set("members", "", msgspec.json.encode(here).decode())
            elif now > deadline + self.timeout:
                raise LinkError(f"rank {here[0]} of this site did not publish the list of ranks that are left")
            time.sleep(POLL)
        members = msgspec.json.decode(store.get("members"), type=list[int])
        if rank not in members:
            raise LinkError(f"rank {rank} registered too late: its site continues with ranks {members}")
        return members

    def positions(self, members: Sequence[int], rank: int, generation: int, own: StepPosition) -> list[StepPosition]:
        """The positions of all members, in their order."""
        store = self._of(generation)
        store.set(f"position/{rank}", msgspec.json.encode(own).decode())
        keys = [f"position/{member}" for member in members]
        store.wait(keys, timedelta(seconds=self.timeout))
        return [msgspec.json.decode(store.get(key), type=StepPosition) for key in keys]

    def groups(self, members: Sequence[int], rank: int, generation: int) -> list[dist.ProcessGroup]:
        """Two groups of these ranks, created without any other rank."""
        store, limit = self._of(generation), timedelta(seconds=self.timeout)
        group_rank, size = members.index(rank), len(members)
        return [ProcessGroupGloo(PrefixStore(name, store), group_rank, size, limit) for name in ("sum", "share")]  # type: ignore[misc]

    def _of(self, generation: int) -> PrefixStore:
        return PrefixStore(f"gradwire/failover/{self.name}/{generation}", self.store)
