"""TreeReducer: reduces the buckets of a session over a plan's trees, through its site where that has several ranks.

In: bucket requests. Out: their gradients overwritten by the mean over all ranks, and what a bucket costs. Only the
leader of a site has a connection to the trees between sites.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.closing import Closing
from gradwire.level import Level
from gradwire.sites.address_book import AddressBook
from gradwire.sites.failover import Rebuild, SiteFailover
from gradwire.sites.local_reduce import LocalReducer
from gradwire.sites.plan_shape import PlanShape
from gradwire.sites.result_broadcast import SiteLevel
from gradwire.transport.traffic import Source
from gradwire.tree.accumulator import frame_bytes, mask_bytes
from gradwire.tree.request import BucketRequest
from gradwire.tree.setup import TreeConnection
from gradwire.tree.state_transfer import TransferableState
from gradwire.types import Bucket, Decision, Footprint, Plan


class TreeReducer:
    """One rank's part. `addresses` are those of members whose process was replaced, where plans are elastic."""

    def __init__(
        self, connection: TreeConnection | None, site: LocalReducer | None, addresses: AddressBook | None = None
    ) -> None:
        self.connection: TreeConnection | None = None
        self.site: LocalReducer | SiteFailover | None = site
        self._addresses = addresses
        self._state: TransferableState | None = None
        # Where plans decide the level: as the leader sent it to this site.
        self._site_level: SiteLevel | None = None
        self._shape: tuple[Plan | None, PlanShape] = None, PlanShape()
        if connection is not None:
            self._connect(connection)

    def source(self) -> Source | None:
        """The traffic between sites; None on a follower."""
        return self.connection.source if self.connection else None

    @property
    def plan(self) -> Plan | None:
        """The plan in force; None on a follower."""
        return self.connection.executor.member.plan if self.connection else None

    def version(self) -> int:
        """Of the plan in force; 0 on a follower."""
        plan = self.plan
        return plan.version if plan is not None else 0

    @property
    def level(self) -> Level | None:
        """The level of the plan in force, on a follower as its leader sent it; None where plans do not decide it."""
        plan = self.plan
        if plan is None:
            return self._site_level.received if self._site_level is not None else None
        return Level.parse(plan.level) if plan.level else None

    @property
    def used_level(self) -> Level | None:
        """The level of the last step; it differs from the plan's when a new epoch began since."""
        return self.connection.executor.used_level if self.connection else None

    @property
    def is_coordinator(self) -> bool:
        """Whether this rank proposes changes of the plan."""
        member = self.connection.executor.member if self.connection else None
        return member is not None and member.coordinator == member.rank

    def request_level(self, decision: Decision) -> None:
        """Propose a plan with this level; it is in force once all members agreed."""
        if self.connection is not None:
            self.connection.request_level(str(decision.level), decision.reason)

    @property
    def world_size(self) -> int | None:
        """How many ranks take part now; None where sites have several ranks, which other sites do not know."""
        if self.connection is None or self.site is not None:
            return None
        return len(self.connection.executor.member.members)

    @property
    def energy_ratio(self) -> float:
        """Energy of what this rank encodes, relative to its own gradient. A member encodes the sum of its subtree, so
        its residual is larger by as much."""
        return self._plan_shape().energy_ratio

    @property
    def side_frames(self) -> int:
        """Frames that this rank sent by side routes."""
        side_routes = self.connection.executor.side_routes if self.connection else None
        return side_routes.sent_frames if side_routes else 0

    def submit(self, request: BucketRequest) -> None:
        """`request.done` is called when the gradient is the mean, or with an error."""
        if self.site is not None:
            self.site.submit(request).add_done_callback(lambda result: request.done(result.exception()))
        elif self.connection is not None:
            self.connection.executor.submit(request)

    def set_replica_state(self, state: TransferableState) -> None:
        """What a member that rejoins receives; a leader also sends it to its site."""
        self._state = state
        if self.site is not None:
            state = self.site.set_replica_state(state)
        if self.connection is not None:
            self.connection.executor.set_replica_state(state)

    def resend_residuals(self) -> None:
        """Residuals changed (a step was undone, or a state was loaded); followers send theirs again."""
        if self.site is not None:
            self.site.resend_residuals()

    def footprint(self, level: Level, bucket: Bucket) -> Footprint:
        """Bytes that a member sends for a bucket, on average, and the hops of the longest path up and down: twice that
        where members agree on indices first, which travel down to all."""
        if self.connection is None:
            return Footprint(2 * bucket.nbytes, 2)
        shape, mask = self._plan_shape(), mask_bytes(level, bucket.numel)
        sent = (frame_bytes(level, bucket.numel) + mask / 2) * shape.frames
        return Footprint(round(sent), 2 * shape.hops if mask else shape.hops)

    def footprints(self, level: Level, buckets: Sequence[Bucket]) -> tuple[Footprint, ...]:
        """Of each bucket of a step."""
        return tuple(self.footprint(level, bucket) for bucket in buckets)

    def close(self) -> None:
        parts = (self.site, self._addresses, self.connection)
        Closing(*(part.close for part in parts if part is not None)).close()

    # ---- sites that survive the loss of a rank -------------------------------------------------------------------
    def share_level(self) -> None:
        """Let every rank of the site know the level of the plan in force; before the first step."""
        assert isinstance(self.site, LocalReducer)
        self._site_level = SiteLevel(lambda: self.plan.level if self.plan is not None else "")
        self.site.share_level(self._site_level)

    def enable_failover(self, rebuild: Rebuild, timeout: float) -> None:
        """Rebuild the site when one of its ranks is lost; before the first step."""
        assert isinstance(self.site, LocalReducer)
        self.site = SiteFailover(self.site, rebuild, timeout)

    def adopt(self, site: LocalReducer, connection: TreeConnection | None) -> LocalReducer:
        """Prepare a site that was rebuilt under a new leader; `connection` is the leader's, to the trees."""
        assert self._state is not None
        site.share_level(self._site_level)
        state = site.set_replica_state(self._state)
        if connection is not None:
            self._connect(connection)
            connection.executor.set_replica_state(state)
        return site

    def _connect(self, connection: TreeConnection) -> None:
        self.connection = connection
        if self._addresses is not None:
            executor = connection.executor
            self._addresses.watch(lambda: executor.unreachable)

    def _plan_shape(self) -> PlanShape:
        """Computed once per plan: a controller asks for every level at every step."""
        plan = self.plan
        if plan is not None and self.connection is not None and plan is not self._shape[0]:
            self._shape = plan, PlanShape.of(plan, self.connection.executor.member.rank)
        return self._shape[1]
