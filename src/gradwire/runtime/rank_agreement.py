"""Rank agreement: what the ranks of a session compare through torch's store, beside their gradients.

Nothing is compared without a store, in a group of one rank, or on a rank that rejoins a running job: then the others
are training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from gradwire.clock import Clock
from gradwire.config import Config
from gradwire.events import Event, Faulted, Warned
from gradwire.observe.event_bus import EventBus, host_name
from gradwire.runtime.job_ranks import JobRanks
from gradwire.sites.job_record import model_name
from gradwire.sites.placeholder_group import PlaceholderGroup
from gradwire.transport.bootstrap.config_check import require_same_settings
from gradwire.transport.bootstrap.replica_check import ReplicaCheck
from gradwire.transport.bootstrap.store_exchange import StoreExchange
from gradwire.transport.lost_rank import LostRankFinder

CheckFacts = Callable[[Mapping[str, str]], None]


def fact_checker(config: Config, group: dist.ProcessGroup) -> CheckFacts:
    """A function that takes facts; ConfigError on every rank when one rank's facts differ. All ranks call it at the
    same points."""

    def check(facts: Mapping[str, str]) -> None:
        if _shared_store(group) is not None and not isinstance(group, PlaceholderGroup):
            require_same_settings(StoreExchange.for_group(group, "alike", config.transport.timeout), facts)

    return check


def check_job_facts(config: Config, job: JobRanks, facts: Mapping[str, str]) -> None:
    """As a checker of facts, among all ranks of a job with several groups."""
    require_same_settings(_job_exchange(config, job, "alike"), facts)


def all_ranks(
    config: Config, group: dist.ProcessGroup, lost_ranks: LostRankFinder, job: JobRanks | None = None
) -> Callable[[bool], bool]:
    """A function that says whether its argument is true on every rank; all ranks call it at the same step, which may be
    in the middle of training, and beside the training thread. With an elastic plan nothing is compared: it returns this
    rank's own argument."""

    def holds(here: bool) -> bool:
        if _shared_store(group) is None or config.planning.elastic:
            return here
        if job is None:
            exchange = StoreExchange.for_group(group, "everybody", config.transport.timeout, own_connection=True)
        else:
            exchange = _job_exchange(config, job, "everybody", own_connection=True)
        exchange.find_gone = lambda ranks: lost_ranks.probe_ranks(ranks)[0]
        return all(exchange.gather("answer", here, bool))

    return holds


def replica_check(config: Config, group: dist.ProcessGroup, bus: EventBus, clock: Clock) -> ReplicaCheck | None:
    """Compares replicas where ranks may fail and rejoin; None where all ranks stay and a collective compares them."""
    store = _shared_store(group)
    if store is None or not (config.plan and config.planning.elastic and config.observe.verify):
        return None
    name = model_name(f"verify/{group.group_name}")

    def warn(text: str) -> None:
        bus.emit(Warned(clock.now(), text))

    return ReplicaCheck(store, name, group.rank(), warn, joined=isinstance(group, PlaceholderGroup))


def open_lost_rank_finder(
    lost_ranks: LostRankFinder, config: Config, group: dist.ProcessGroup, bus: EventBus, job: JobRanks | None = None
) -> None:
    """Let errors name the lost rank. Call this last, so that wires have the first choice of ports."""
    if _shared_store(group) is None or isinstance(group, PlaceholderGroup):
        return
    if job is None:
        exchange = StoreExchange.for_group(group, "lost-rank", config.transport.timeout)
    else:
        exchange = _job_exchange(config, job, "lost-rank")
    lost_ranks.open(exchange, host_name())

    def on_event(event: Event) -> None:
        if isinstance(event, Faulted) and event.kind == "peer_back" and event.peer is not None:
            lost_ranks.forget(event.peer)

    if config.planning.elastic:
        bus.add(on_event)


def _job_exchange(config: Config, job: JobRanks, name: str, *, own_connection: bool = False) -> StoreExchange:
    """The next exchange called `name` among all ranks of a job with several groups."""
    store = dist.distributed_c10d._get_default_store()
    if own_connection:
        store = store.clone()  # type: ignore[attr-defined]  # missing in torch's stubs
    members = sha256(repr(job.ranks).encode()).hexdigest()[:16]
    return StoreExchange.open(store, f"{name}/job/{members}", job.rank, job.size, config.transport.timeout)


def _shared_store(group: dist.ProcessGroup) -> Store | None:
    """The job's store; None where the group has one rank or the job has no store."""
    return dist.distributed_c10d._get_default_store() if group.size() > 1 else None
