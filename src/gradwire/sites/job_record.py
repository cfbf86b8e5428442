"""Standing: what a running job says of itself in torch's store, so that a rank that was killed finds its place again.

In: on the ranks of an elastic job, what one of them would need to know. Out: the same on a process that was started
anew in the place of a dead one, which then comes to the others as one that was cut off (`crossing`, `handover`).
Whoever reaches the store may write there: what is read is parsed and checked, and where the secret was given by the
environment nobody is believed who does not know it.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Final

import msgspec
from torch._C._distributed_c10d import PrefixStore, Store

import gradwire
from gradwire.config import Config
from gradwire.errors import ConfigError, LinkError
from gradwire.sites.failover import LeaderRecord
from gradwire.transport.bootstrap.rendezvous import RankAddress, check_place

VARIABLE: Final = "GRADWIRE_REJOIN"
LOOK: Final = 0.1
# Settings of planning that name a file: each machine may have it in another place.
FILES: Final = ("net", "sites")


class JobRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the job is reached, and what must be the same on whoever comes to it."""

    heirloom: LeaderRecord
    facts: dict[str, str]


_SEATS: Counter[str] = Counter()


def seat(group: str) -> str:
    """The name under which a model of this group is known in the store: models are attached in the same order by a
    rank's first process and by every later one."""
    _SEATS[group] += 1
    return f"{group}/{_SEATS[group]}"


def facts_of(config: Config) -> dict[str, str]:
    """What all ranks of a job have alike: what decides which operations a rank makes, and how large they are."""
    settings: dict[str, object] = {"level": config.level, "plan": config.plan, "transport": config.transport.kind}
    settings |= {f"compress.{name}": value for name, value in msgspec.structs.asdict(config.compress).items()}
    settings |= {"transport.tolerance": config.transport.tolerance, "transport.encrypt": config.transport.encrypt}
    settings["observe.verify"] = config.observe.verify
    if config.plan:
        planning = msgspec.structs.asdict(config.planning).items()
        settings |= {f"planning.{name}": value for name, value in planning if name not in FILES}
    return {"gradwire's version": gradwire.__version__, **{name: str(value) for name, value in settings.items()}}


def keep(store: Store, name: str, standing: JobRecord) -> None:
    """Said once, by rank 0."""
    _book(store).set(name, msgspec.json.encode(standing).decode())


def find(store: Store, name: str, facts: dict[str, str], patience: float) -> JobRecord:
    """What the running job said; LinkError where there is none, ConfigError where it is another one than this."""
    book, deadline = _book(store), time.monotonic() + patience
    while not book.check([name]):
        if time.monotonic() > deadline:
            raise LinkError(
                f"{VARIABLE}: torch's store knows of no job to come back to: only jobs with a plan, planning.elastic "
                "and one rank per site take a new process in; a store that rank 0 served is gone with it, one of "
                "`gradwire store` is not"
            )
        time.sleep(LOOK)
    try:
        standing = msgspec.json.decode(book.get(name), type=JobRecord)
        bytes.fromhex(standing.heirloom.secret)
        for rank, (address, port) in standing.heirloom.places.items():
            check_place(rank, RankAddress(address, port))
    except (msgspec.DecodeError, ValueError, LinkError) as error:
        raise LinkError(f"{VARIABLE}: what the job says of itself cannot be read ({error})") from error
    for what, theirs in standing.facts.items():
        if facts.get(what) != theirs:
            raise ConfigError(f"{VARIABLE}: {what} is {facts.get(what)!r} here and {theirs!r} in the running job")
    return standing


def _book(store: Store) -> PrefixStore:
    return PrefixStore("gradwire/standing", store)
