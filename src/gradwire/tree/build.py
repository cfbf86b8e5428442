"""Build: puts one member's tree executor together from its parts, bottom-up."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from gradwire.clock import Clock, MonotonicClock
from gradwire.plan.membership.link_estimates import KnownNetwork
from gradwire.plan.membership.member import Member
from gradwire.tree.control_channel import ControlChannel
from gradwire.tree.elastic_controller import ElasticController
from gradwire.tree.executor import TreeExecutor
from gradwire.tree.executor_config import ExecutorConfig
from gradwire.tree.frame_io import FrameIO
from gradwire.tree.membership_listener import MembershipListener
from gradwire.tree.pending_requests import PendingRequests
from gradwire.tree.plan_manager import PlanManager, PlanManagerConfig
from gradwire.tree.reconnect import Reconnector
from gradwire.tree.step_runner import StepRunner
from gradwire.tree.step_snapshot import StepSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeParts:
    """What an executor is built from. Without `planning` its first plan and members never change.

    `addresses` are those of members whose process was replaced, or that joined; its owner may add to it at any time.
    `empty` are the numbers of members that may join.
    """

    wire: Any
    member: Member
    config: ExecutorConfig = field(default_factory=ExecutorConfig)
    clock: Clock = field(default_factory=MonotonicClock)
    listener: MembershipListener = field(default_factory=MembershipListener)
    addresses: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    planning: tuple[KnownNetwork, PlanManagerConfig] | None = None
    empty: Collection[int] = ()


def build_executor(parts: TreeParts) -> TreeExecutor:
    config, member, listener = parts.config, parts.member, parts.listener
    # Elastic plans need the last step of a member that leaves. Its Leave message has it, a closed connection does not.
    frame_io = FrameIO(parts.wire, parts.clock, config.timeout, allow_leaving=not config.elastic)
    frame_io.left |= set(parts.empty)  # as if another process had been there and left
    channel = ControlChannel(frame_io)
    snapshot = StepSnapshot() if config.elastic else None
    runner = StepRunner(member, frame_io, PendingRequests(snapshot), config)
    elastic = None
    if snapshot is not None:
        reconnector = Reconnector(parts.wire, parts.addresses)
        elastic = ElasticController(runner, snapshot, channel, reconnector, listener, config.rejoin)
    manager = PlanManager(member, channel, *parts.planning, listener) if parts.planning is not None else None
    return TreeExecutor(runner, manager, elastic)
