"""Step runner: reduces the buckets of one step after the other over the trees of the plan in force.

In: bucket requests in the order of submission, which is the same on every rank. Out: their gradients overwritten by the
mean. Pieces start in that order as long as their buffers stay within a budget; the oldest may always start, so one can
always finish. Runs on the executor's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from gradwire.errors import ConfigError, IntegrityError, LinkError
from gradwire.level import Level
from gradwire.plan.membership.member import Member
from gradwire.plan.membership.messages import NO_VOTE, Tag
from gradwire.tree.accumulator import check_summable, frame_bytes
from gradwire.tree.executor_config import ExecutorConfig
from gradwire.tree.frame_io import FrameIO
from gradwire.tree.node import TreeNode
from gradwire.tree.partition import Partitioner, Piece
from gradwire.tree.pending_requests import PendingRequests
from gradwire.tree.piece_task import PieceTask
from gradwire.tree.request import BucketRequest
from gradwire.tree.role import Role, roles_of
from gradwire.tree.side_routes import SideRoutes
from gradwire.types import Plan

# Bytes of frames that started pieces may hold: enough to fill any link, little compared with a model.
BUDGET: Final = 96 << 20


@dataclass(slots=True)
class _Step:
    """The current step: its tag, its part of the plan, and its unfinished pieces."""

    tag: Tag
    roles: tuple[Role, ...]
    partitioner: Partitioner
    # Set where the plan decides the level of its steps.
    level: Level | None = None
    left: int = 0
    closed: bool = False
    vote: int = NO_VOTE


class StepRunner:
    """Runs the steps of one member."""

    def __init__(self, member: Member, frame_io: FrameIO, pending: PendingRequests, config: ExecutorConfig) -> None:
        self.member, self.frame_io, self.pending, self._config = member, frame_io, pending, config
        self.side_routes = SideRoutes(member.rank, frame_io) if config.side else None
        # The level of the last completed step, where the plan decides it.
        self.used_level: Level | None = None
        self._step: _Step | None = None
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._held = self._active = 0

    @property
    def tag(self) -> Tag | None:
        """The tag of the current step; None between steps."""
        return self._step.tag if self._step is not None else None

    def start(self, request: BucketRequest) -> None:
        """Cut the request into pieces; `admit` starts them."""
        step = self._current_step()
        if step.level is not None and not request.own_level:
            request = replace(request, level=step.level)
        numel = request.bucket.numel
        ratio = frame_bytes(request.level, numel) / (4 * numel) if numel else 1.0
        pieces = step.partitioner.partition(numel, ratio)
        step.left += len(pieces)
        step.closed = request.bucket.is_last
        left = len(pieces)

        def restored(vote: int) -> None:
            nonlocal left
            left -= 1
            step.left -= 1
            step.vote = vote
            if step.left == 0 and step.closed:
                self._complete(step)
            if left == 0:
                self.pending.bucket_done(request)

        for piece in pieces:
            self._waiting.append((_weight(step, piece), self._reduction(step, request, piece, restored)))
        if not pieces:  # an empty bucket
            if step.left == 0 and step.closed:
                self._complete(step)
            self.pending.bucket_done(request)

    def admit(self) -> None:
        """Start waiting pieces, as far as the budget allows."""
        while self._waiting and (not self._active or self._held + self._waiting[0][0] <= BUDGET):
            weight, begin = self._waiting.popleft()
            self._held += weight
            self._active += 1
            begin()

    def halt(self) -> None:
        """Drop the current step: its epoch has ended."""
        self.frame_io.drop_step_data()
        self._waiting.clear()
        self._held = self._active = 0
        self._step = None

    def _current_step(self) -> _Step:
        if self._step is None:
            tag = self.member.begin_step()
            if tag is None:
                raise LinkError(
                    f"rank {self.member.rank} is not a member of the current epoch and cannot begin a step; "
                    "restart the job from the last checkpoint"
                )
            plan = self.member.plan
            if self.side_routes is not None:
                self.side_routes.learn(plan, tag.epoch)
            self._step = _Step(tag, roles_of(plan, self.member.rank), Partitioner(plan), _level_of(plan))
        return self._step

    def _complete(self, step: _Step) -> None:
        if not self.member.complete_step(step.tag, step.vote):
            return  # the epoch ended: the step will be repeated
        self.used_level = step.level
        self._step = None
        self.pending.step_done(step.tag.step)

    def _reduction(
        self, step: _Step, request: BucketRequest, piece: Piece, restored: Callable[[int], None]
    ) -> Callable[[], None]:
        weight = _weight(step, piece)
        part = slice(piece.start, piece.start + piece.numel)
        tolerance = 1.0 if request.level.off else self._config.tolerance  # `off` promises every bit
        task = PieceTask(
            self.member.rank, self.member.members, step.tag, request.bucket.index, piece, request.level,
            request.gradient[part], request.residual[part], self._config.stochastic, tolerance,
            self.side_routes, request.weight,
        )  # fmt: skip

        def ended() -> None:
            self._held -= weight
            self._active -= 1
            self.admit()

        return TreeNode(self.frame_io, step.roles[piece.tree], task, restored, ended).begin


def _weight(step: _Step, piece: Piece) -> int:
    """Upper bound of the bytes that a piece's frames hold here; compression only makes them smaller."""
    return 4 * piece.numel * (1 + step.roles[piece.tree].receives)


def _level_of(plan: Plan) -> Level | None:
    """IntegrityError for a level that trees cannot use."""
    if not plan.level:
        return None
    try:
        level = Level.parse(plan.level)
        check_summable(level)
    except ConfigError as error:
        raise IntegrityError(f"plan {plan.version} has a level that cannot be used: {error}") from error
    return level
