"""Elastic: what lets a job with an elastic plan continue without a lost rank, and lets a restarted one rejoin.

    enable_failover   a site of several ranks is rebuilt without a rank that died, if need be under a new leader
    publish_rejoin    sites of one rank: torch's store has what a process needs that replaces a dead one
    rejoin_job        this process replaces a dead one, or joins at a place that is empty (`planning.max_ranks`)

In all of them the process connects like a member that was disconnected and rejoins: it receives the plan and the
replica state from the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from gradwire.config import Config
from gradwire.errors import ConfigError, LinkError
from gradwire.events import Faulted
from gradwire.sites.address_book import AddressBook
from gradwire.sites.failover_store import AskAlive, FailoverStore, unknown
from gradwire.sites.job_record import VARIABLE, JobRecord, find_job, job_facts, model_name, publish_job
from gradwire.sites.leader_record import LeaderRecord, broadcast_leader_record
from gradwire.sites.local_reduce import LocalReducer
from gradwire.sites.rank_claim import claim_rank, publish_places
from gradwire.sites.reducer import TreeReducer
from gradwire.sites.step_resume import StepPosition, StepResume
from gradwire.sites.topology import SiteTopology
from gradwire.transport.bootstrap.address import published_address
from gradwire.transport.bootstrap.rendezvous import listen
from gradwire.transport.bootstrap.secret import given_secret
from gradwire.transport.carrier import ltp_opener, tcp_opener
from gradwire.tree.setup import (
    EventContext,
    TreeConnection,
    TreeContext,
    TreeMembership,
    connect_tree,
    decided_by_plan,
    read_plan,
)
from gradwire.types import Plan


@dataclass(frozen=True, slots=True)
class SiteContext:
    """The job as a rank of one of its sites sees it."""

    config: Config
    group: dist.ProcessGroup
    sites: SiteTopology
    numel: int
    events: EventContext
    ask_alive: AskAlive = unknown

    @property
    def rank(self) -> int:
        return self.group.rank()

    @property
    def tree(self) -> TreeContext:
        return TreeContext(config=self.config, numel=self.numel, events=self.events)

    @property
    def own_ranks(self) -> tuple[int, ...]:
        """The ranks of this rank's site."""
        return self.sites.of(self.rank)

    @property
    def member(self) -> int:
        """The number of this rank's site in the plan between sites."""
        return self.sites.groups.index(self.own_ranks)

    @property
    def places(self) -> int:
        """How many ranks the job may have."""
        return self.config.planning.places(self.group.size())

    @property
    def facts(self) -> dict[str, str]:
        """What must be the same in a process that joins."""
        return job_facts(self.config, self.places, self.numel)

    @property
    def store(self) -> Store:
        return dist.distributed_c10d._get_default_store()


def enable_failover(
    reducer: TreeReducer, context: SiteContext, addresses: AddressBook, neighbours: dist.ProcessGroup
) -> None:
    """Let the site survive the loss of any of its ranks: all of them receive what they need to lead it."""
    config = context.config
    if decided_by_plan(config):
        reducer.share_level()
    own = LeaderRecord.of(reducer.connection) if reducer.connection is not None else None
    record = broadcast_leader_record(own, neighbours)
    rebuild = SiteRebuild(reducer, context, record, addresses)
    reducer.enable_failover(rebuild, config.transport.timeout + config.planning.rejoin)


class SiteRebuild:
    """Builds a site again from the ranks that are left."""

    def __init__(
        self, reducer: TreeReducer, context: SiteContext, record: LeaderRecord, addresses: AddressBook
    ) -> None:
        self._reducer, self._context, self._record, self._addresses = reducer, context, record, addresses
        transport, name = context.config.transport, f"{context.group.group_name}/{context.member}"
        self._store = FailoverStore(context.store, name, transport.dead_after, transport.timeout, context.ask_alive)
        self._ranks = list(context.own_ranks)

    def __call__(self, generation: int, old: LocalReducer, position: StepPosition) -> LocalReducer:
        rank, before = self._context.rank, self._ranks
        self._ranks = self._store.survivors(before, rank, generation)
        groups = self._store.groups(self._ranks, rank, generation)
        leader = self._ranks[0]
        if leader == before[0]:
            positions = self._store.positions(self._ranks, rank, generation, position)
            return self._resume(old, groups, positions, sorted(set(before) - set(self._ranks)))
        if leader != rank:
            return self._reducer.adopt(LocalReducer(groups, None, resumable=True), None)
        return self._lead(groups)

    def _resume(
        self,
        old: LocalReducer,
        groups: Sequence[dist.ProcessGroup],
        positions: Sequence[StepPosition],
        lost: Sequence[int],
    ) -> LocalReducer:
        """The leader is alive and continues with the remaining ranks."""
        group_rank = self._ranks.index(self._context.rank)
        if not group_rank:
            events = self._context.events
            why = f"rank {self._ranks[0]} continues with ranks {self._ranks} of its site"
            for rank in lost:
                events.sink.emit(Faulted(events.clock.now(), positions[0].step, "peer_lost", why, rank))
        return old.resumed(groups, StepResume.of(group_rank, positions, old.progress))

    def _lead(self, groups: Sequence[dist.ProcessGroup]) -> LocalReducer:
        """This rank is the new leader."""
        # The new leader votes: the old one is known to be dead, and its site is still here.
        plan = read_plan(self._record.plan)
        connection = replace_member(self._context, self._record, plan, self._addresses, votes=True)
        return self._reducer.adopt(LocalReducer(groups, connection.executor.submit, resumable=True), connection)


def publish_rejoin(connection: TreeConnection, context: SiteContext, name: str, addresses: AddressBook) -> None:
    """Let a rank that dies be replaced, and ranks join: a new process finds in the store what it needs to know."""
    drawn = given_secret() is None
    if drawn:
        addresses.share_secret(connection.wire.secret)
    addresses.show_life(context.rank)
    if context.rank == 0:
        publish_places(context.store, context.group.size(), context.places)
        addresses.publish(0, (published_address(), connection.wire.port))
        leader = msgspec.structs.replace(LeaderRecord.of(connection), secret="")
        publish_job(context.store, name, JobRecord(leader, context.facts, drawn))


def rejoin_job(context: SiteContext) -> TreeReducer:
    """This process replaces a dead one, or is another rank of a job that may grow."""
    config = context.config
    if not config.plan or not config.planning.elastic:
        raise ConfigError(
            f"{VARIABLE}: only a job with a plan and planning.elastic takes a new process; set both as in the job"
        )
    if config.compress.warmup:
        raise ConfigError(f"{VARIABLE}: compress.warmup counts steps that this rank has not made; set it to 0")
    name = model_name(context.group.group_name)
    job = find_job(context.store, name, context.facts, config.transport.connect)
    record, book = job.leader, AddressBook(context.store, name)
    if job.drawn and given_secret() is not None:
        raise ConfigError(
            f"{VARIABLE}: GRADWIRE_SECRET is set here, but the running job was started without one and drew its own; "
            "unset it"
        )
    claim_rank(context.store, context.rank)
    book.show_life(context.rank)
    if job.drawn:
        secret = book.request_secret(config.transport.connect)
        book.share_secret(secret)
        record = msgspec.structs.replace(record, secret=secret.hex())
    book.read(range(context.places))
    addresses = record.addresses | book.addresses
    missing = set(read_plan(record.plan).trees[0].parents) - addresses.keys() - {context.rank}
    if missing:
        raise LinkError(
            f"{VARIABLE}: torch's store has no address of ranks {sorted(missing)}; restart the whole job from a "
            "checkpoint"
        )
    addresses.pop(context.rank, None)
    # Any plan will do for the start: this rank receives the one in force when it rejoins.
    network = context.tree.known_network(context.places).only(sorted({*addresses, context.rank}))
    record = msgspec.structs.replace(record, addresses=addresses)
    connection = replace_member(context, record, context.tree.plan(network, 1), book)
    return TreeReducer(connection, None, book)


def replace_member(
    context: SiteContext, record: LeaderRecord, plan: Plan, addresses: AddressBook, votes: bool = False
) -> TreeConnection:
    """Connect this rank in the place of a dead one, or in an empty one, as a member that the others lost and that
    rejoins."""
    config, member = context.config, context.member
    secret = given_secret() or bytes.fromhex(record.secret)
    if not secret:
        raise LinkError(
            f"GRADWIRE_SECRET: rank {context.rank} needs it to take the place of a lost rank; set it on every rank"
        )
    opener = (ltp_opener if record.kind == "ltp" else tcp_opener)(config.transport, member, secret)
    wire, own = listen(opener, None)
    if wire is None:
        raise LinkError(f"rank {context.rank} cannot listen: {own.error}")
    ranks = [context.rank if one == member else leader for one, leader in enumerate(context.sites.leaders)]
    try:
        wire.addresses.update(record.addresses)
        addresses.publish(member, (own.address, own.port))
        place = TreeMembership(
            number=member, members=sorted(record.addresses.keys() - {member}), plan=plan, ranks=ranks,
            addresses=addresses.addresses, votes=votes,
        )  # fmt: skip
        return connect_tree(context.tree, wire, place)
    except BaseException:
        wire.close()
        raise
