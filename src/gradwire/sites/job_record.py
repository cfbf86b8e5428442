"""JobRecord: what a running job publishes in torch's store, so that a restarted process can rejoin it.

In: on rank 0 of an elastic job, what a process needs that replaces a dead one. Out: the same in that process, which
then joins like a member that was disconnected. Anyone who reaches the store can write to it: what is read is parsed and
checked, and where GRADWIRE_SECRET is set only processes that know it can connect.
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
from gradwire.sites.leader_record import LeaderRecord
from gradwire.transport.bootstrap.rendezvous import RankAddress, check_address

VARIABLE: Final = "GRADWIRE_REJOIN"
# Seconds between two reads of the store.
POLL: Final = 0.1
# Settings of planning that name a file: its path may differ from machine to machine.
FILES: Final = ("net", "sites")


PLACES: Final = "WORLD_SIZE"
MOST: Final = "planning.max_ranks"
GROW: Final = (
    "a new process takes the place of a lost rank, or one that planning.max_ranks left empty at the start: give this "
    "rank the same. To train with more ranks than that, save handle.state_dict() and start again with all of them"
)


class JobRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to connect to the job, and the settings that must be the same on all ranks."""

    leader: LeaderRecord  # without the secret, which members give to a process that asks for it
    facts: dict[str, str]
    drawn: bool  # whether the job drew its secret: otherwise the user gives it to the new process, too


_ATTACHED: Counter[str] = Counter()


def model_name(group: str) -> str:
    """The name of the next model of this group in the store. A restarted process attaches its models in the same order
    as the first one, so it finds the same names."""
    _ATTACHED[group] += 1
    return f"{group}/{_ATTACHED[group]}"


# What a rank may set for itself: it sends the same frames.
OWN: Final = frozenset({"encode", "residual_memory", "residual_type"})


def facts_of(config: Config) -> dict[str, str]:
    """What must be the same on all ranks: everything that decides which operations a rank runs, and their sizes."""
    settings: dict[str, object] = {"level": config.level, "lossiest": config.lossiest}
    settings["extra_steps"] = config.extra_steps
    settings |= {"plan": config.plan, "transport": config.transport.kind}
    compress = msgspec.structs.asdict(config.compress).items()
    settings |= {f"compress.{name}": value for name, value in compress if name not in OWN}
    settings |= {"transport.tolerance": config.transport.tolerance, "transport.encrypt": config.transport.encrypt}
    settings["observe.verify"] = config.observe.verify
    settings["sync_every"] = config.sync_every
    settings["sync_seconds"], settings["sync_wait"] = config.sync_seconds, config.sync_wait
    settings["num_fragments"], settings["fragment_sync_delay"] = config.num_fragments, config.fragment_sync_delay
    settings["fragment_progress"] = config.fragment_progress
    if config.plan:
        planning = msgspec.structs.asdict(config.planning).items()
        settings |= {f"planning.{name}": value for name, value in planning if name not in FILES}
    return {"gradwire's version": gradwire.__version__, **{name: str(value) for name, value in settings.items()}}


def job_facts(config: Config, places: int, numel: int) -> dict[str, str]:
    """These, how many places the job has, and the size of its model."""
    model = {"the number of the model's trained values": str(numel)}
    return {**facts_of(config), PLACES: str(places), **model}


def publish_job(store: Store, name: str, record: JobRecord) -> None:
    """Called once, by rank 0."""
    _records(store).set(name, msgspec.json.encode(record).decode())


def find_job(store: Store, name: str, facts: dict[str, str], patience: float) -> JobRecord:
    """The record of the running job; LinkError where there is none, ConfigError where its settings differ."""
    records, deadline = _records(store), time.monotonic() + patience
    while not records.check([name]):
        if time.monotonic() > deadline:
            raise LinkError(
                f"{VARIABLE}: torch's store has no job to rejoin. A new process can only join a job with a plan, "
                "planning.elastic and one rank per site. A store that rank 0 served ends with rank 0; use "
                "`gradwire store` to keep it"
            )
        time.sleep(POLL)
    try:
        record = msgspec.json.decode(records.get(name), type=JobRecord)
        for rank, (address, port) in record.leader.addresses.items():
            check_address(rank, RankAddress(address, port))
    except (msgspec.DecodeError, ValueError, LinkError) as error:
        raise LinkError(
            f"{VARIABLE}: the job's record in torch's store cannot be read ({error}); does the job run the same "
            "gradwire version?"
        ) from error
    for what, theirs in record.facts.items():
        if facts.get(what) != theirs:
            fix = GROW if what in (PLACES, MOST) else "give this rank the same"
            own = facts.get(what)
            raise ConfigError(f"{VARIABLE}: {what} is {own!r} here and {theirs!r} in the running job; {fix}")
    return record


def _records(store: Store) -> PrefixStore:
    return PrefixStore("gradwire/jobs", store)
