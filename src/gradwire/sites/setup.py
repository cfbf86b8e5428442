"""Setup: opens a rank's TreeReducer: its site, its connection to the trees between sites, and what makes it elastic."""

from __future__ import annotations

import torch.distributed as dist

from gradwire.clock import Clock
from gradwire.config import Config
from gradwire.decide.registry import is_controller
from gradwire.errors import ConfigError
from gradwire.events import Sink
from gradwire.level import Level
from gradwire.sites.address_book import AddressBook
from gradwire.sites.elastic import SiteContext, enable_failover, publish_rejoin, rejoin_job
from gradwire.sites.failover_store import AskAlive, unknown
from gradwire.sites.job_record import model_name
from gradwire.sites.local_reduce import LocalReducer
from gradwire.sites.placeholder_group import PlaceholderGroup
from gradwire.sites.reducer import TreeReducer
from gradwire.sites.topology import SiteTopology, find_sites, open_groups
from gradwire.transport.bootstrap.store_exchange import StoreExchange
from gradwire.tree.accumulator import check_summable
from gradwire.tree.request import BucketRequest
from gradwire.tree.setup import EventContext, open_tree


def open_reducer(
    config: Config,
    group: dist.ProcessGroup,
    numel: int,
    clock: Clock,
    sink: Sink,
    ask_alive: AskAlive = unknown,
) -> TreeReducer | None:
    """None without a plan or without peers. Every rank of the group calls this at the same point."""
    events, single = EventContext(clock, sink), SiteTopology.single(config.planning.places(group.size()))
    if isinstance(group, PlaceholderGroup):
        return rejoin_job(SiteContext(config, group, single, numel, events))
    check_may_grow(config.planning.max_ranks, group.size())
    if not config.planner or len(single.groups) == 1:
        return None
    if not is_controller(config.level):
        check_summable(Level.parse(config.level))
    sites = find_sites(StoreExchange.for_group(group, "sites", config.transport.timeout), config.planning.sites)
    if sites is None:
        return _open_single(SiteContext(config, group, single, numel, events))
    if config.planning.max_ranks > group.size():
        raise ConfigError(
            f"planning.max_ranks: {config.planning.max_ranks} lets ranks join, each as a site of its own, but sites of "
            "several ranks are set; unset GRADWIRE_SITE and planning.sites, or leave max_ranks out"
        )
    return _open_site(SiteContext(config, group, sites, numel, events, ask_alive))


def check_may_grow(max_ranks: int, world_size: int) -> None:
    """ConfigError where `planning.max_ranks` is no number of ranks that a job can grow to from this one."""
    if max_ranks and max_ranks < world_size:
        raise ConfigError(
            f"planning.max_ranks: {max_ranks} is less than the {world_size} ranks of the start; set it to the most "
            "ranks that the job may have, or leave it out"
        )


def _open_single(context: SiteContext) -> TreeReducer:
    """Every rank is a site of its own."""
    config, group = context.config, context.group
    ranks = range(context.places)
    if not config.planning.elastic:
        return TreeReducer(open_tree(context.tree, group, ranks), None)
    name = model_name(group.group_name)
    addresses = AddressBook(context.store, name)
    connection = open_tree(context.tree, group, ranks, addresses.addresses)
    publish_rejoin(connection, context, name, addresses)
    return TreeReducer(connection, None, addresses)


def _open_site(context: SiteContext) -> TreeReducer:
    config, sites = context.config, context.sites
    # Followers wait for a leader that is disconnected and may rejoin.
    timeout = config.transport.timeout + (config.planning.rejoin if config.planning.elastic else 0.0)
    own, leaders = open_groups(sites, context.group, timeout)
    elastic = config.planning.elastic and len(sites.groups) > 1
    addresses = AddressBook(context.store, context.group.group_name) if elastic else None
    connection = None
    if leaders is not None and leaders.size() > 1:
        moved = addresses.addresses if addresses is not None else {}
        connection = open_tree(context.tree, leaders, sites.leaders, moved)
    submit = connection.executor.submit if connection else _divide if leaders is not None else None
    reducer = TreeReducer(connection, LocalReducer(own, submit, resumable=elastic), addresses)
    if addresses is not None:
        enable_failover(reducer, context, addresses, own[1])
    return reducer


def _divide(request: BucketRequest) -> None:
    """The only site: its sum becomes the mean."""
    request.gradient.div_(request.weight)
    request.done(None)
