"""Walker: the executor. Walks any plan over any wire, many pieces at once, on one thread.

In: buckets from the training thread (`submit`), a Member that says which plan holds at a step. Out: each bucket's
gradient overwritten by the mean, told by its `done`. Pieces begin in the order of submission, which is the same on
every rank, as long as what they must hold stays within a budget; the oldest always may, so there is always one that can
end. The first failure ends the walker: what is under way and whatever is submitted later fails with the same error.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gradwire.clock import Clock, MonotonicClock
from gradwire.errors import ConfigError, GradwireError, IntegrityError, LinkError
from gradwire.level import Level
from gradwire.plan.membership.member import Member
from gradwire.plan.membership.messages import NO_VOTE, Tag
from gradwire.tree.accumulator import check_summable, frame_bytes
from gradwire.tree.catch_up import CatchUp
from gradwire.tree.frame_io import FrameIO, LostPeerError
from gradwire.tree.partition import Partitioner, Piece
from gradwire.tree.piece_reduce import PieceReduction, PieceTask
from gradwire.tree.reconnect import Reconnector
from gradwire.tree.request import BucketRequest, Done
from gradwire.tree.role import Role, roles_of
from gradwire.tree.side_routes import SideRoutes
from gradwire.tree.state_transfer import TransferableState
from gradwire.tree.step_snapshot import StepSnapshot
from gradwire.types import Bucket, Plan

# Bytes of frames that pieces under way may hold: enough for the widest pipe, little beside a model.
BUDGET: Final = 96 << 20
# The thread looks at deadlines and control at least this often (seconds), also when nothing happens.
TICK: Final = 0.25


@dataclass(frozen=True, slots=True)
class ExecutorConfig:
    """`tolerance` is the fraction of a contribution that must reach the root; 1 is everything.

    `side` lets pieces take side routes. `elastic` lets others go on when a member is lost (`plan.regroup` says who),
    and takes it back when it comes within `rejoin` seconds and there is an estate to hand it.
    """

    timeout: float = 120.0
    tolerance: float = 1.0
    stochastic: bool = True
    side: bool = False
    elastic: bool = False
    rejoin: float = 0.0


@dataclass(slots=True)
class _Step:
    """The step under way: its tag and plan, and what is left of it."""

    tag: Tag
    plan: Plan
    roles: tuple[Role, ...]
    partitioner: Partitioner
    # Where the plan decides the level of its steps.
    level: Level | None = None
    left: int = 0
    closed: bool = False
    vote: int = NO_VOTE


class TreeExecutor:
    """Owns its thread and the frame_io; the wire belongs to the caller."""

    def __init__(
        self,
        wire: Any,
        member: Member,
        config: ExecutorConfig | None = None,
        clock: Clock | None = None,
        addresses: Mapping[int, tuple[str, int]] | None = None,
    ) -> None:
        self.member = member
        self._config = config or ExecutorConfig()
        self._clock = clock or MonotonicClock()
        # Where others go on without a lost member, they must know up to which step it took part: its own word for it,
        # not the wire's, makes a goodbye.
        self.frame_io = FrameIO(wire, self._clock, self._config.timeout, ignore_goodbyes=not self._config.elastic)
        self.side_routes = SideRoutes(member.rank, self.frame_io) if self._config.side else None
        self._inbox: queue.SimpleQueue[BucketRequest | Callable[[], object] | None] = queue.SimpleQueue()
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._held = self._active = 0
        self._step: _Step | None = None
        # The level of the last step that was completed, where the plan decides it.
        self.used_level: Level | None = None
        self._snapshot = StepSnapshot() if self._config.elastic else None
        self._halted = False
        self.catch_up = CatchUp(self.frame_io, member, self._snapshot) if self._snapshot is not None else None
        self.reconnector = Reconnector(wire, addresses)
        self._waiting_since: float | None = None
        self._peers = set(member.members) - {member.rank}
        self._unfinished: dict[int, Done] = {}
        self._failure: BaseException | None = None
        self._closing = False
        self.periodic: list[Callable[[float], None]] = []
        self.on_failure: list[Callable[[BaseException], None]] = []
        self.on_loss: Callable[[int, str], None] = lambda peer, why: None
        self.on_rejoin: Callable[[int, str], None] = lambda rank, how: None
        self.on_reconnect: Callable[[int], None] = lambda peer: None
        self._thread = threading.Thread(target=self._run, name="gradwire-walk", daemon=True)
        self._lock = threading.Lock()

    @property
    def elastic(self) -> bool:
        return self._config.elastic

    def start(self) -> None:
        self._thread.start()

    def start_disconnected(self) -> None:
        """As a member that is connected to nobody yet, and asks to be taken in."""
        self.frame_io.disconnected |= self._peers
        self.member.reach.clear()
        for peer in self._peers:
            self.reconnector.reconnect(peer, self._clock.now() + self._config.rejoin)
        self.start()

    def now(self) -> float:
        return self._clock.now()

    def submit(self, request: BucketRequest) -> None:
        """From any thread; buckets of all ranks in the same order. `done` is called once, from the walker's thread."""
        check_summable(request.level)
        with self._lock:
            if self._failure is None and not self._closing:
                self._inbox.put(request)
                self.frame_io.wake()
                return
        request.done(self._failure or LinkError("the walker was closed"))

    def ask(self, task: Callable[[], object]) -> None:
        """Have something done on the walker's thread, which is the only one that may touch member and frame_io."""
        self._inbox.put(task)
        self.frame_io.wake()

    def close(self, timeout: float = 10.0) -> None:
        """Let frames that others still need go out, then stop the thread. After an error, call it again."""
        with self._lock:
            again, self._closing = self._closing, True
            if again and not self._thread.is_alive():
                return
            if not again and self._snapshot is not None and self._failure is None:
                self._inbox.put(self._announce_leave)
        if not again:
            self._inbox.put(None)
            self.frame_io.wake()
        if self._thread.is_alive():
            self._thread.join(timeout)
        if self._thread.is_alive():
            raise LinkError(f"the walker still waits for a peer after {timeout:g} s")
        self.frame_io.close()

    # ---- the thread ----------------------------------------------------------------------------------------------
    def _run(self) -> None:
        deadline = float("inf")
        try:
            while not (self._closing and self._inbox.empty() and (self.frame_io.idle or self._clock.now() > deadline)):
                if self._closing and deadline == float("inf"):
                    deadline = self._clock.now() + 5.0
                self._poll()
        except BaseException as error:  # the top of this thread: everybody who waits hears it
            self._fail(error)
            self._announce_failure()

    def _poll(self) -> None:
        try:
            self._drain_inbox()
            self.frame_io.poll(TICK)
            for tick in self.periodic:
                tick(self._clock.now())
        except LostPeerError as error:
            if self._snapshot is None:
                raise
            self._lose(error)
        if self._snapshot is not None and self.catch_up is not None:
            self._regroup(self._snapshot, self.catch_up)

    def _announce_failure(self) -> None:
        """Others hear why; a second at most, whatever the wire's state."""
        assert self._failure is not None
        deadline = self._clock.now() + 1.0
        try:
            self.frame_io.drop()
            for send in self.on_failure:
                send(self._failure)
            while not self.frame_io.idle and self._clock.now() < deadline:
                self.frame_io.poll(deadline - self._clock.now())
        except Exception:  # the failure itself has been told already; what comes on top changes nothing
            return

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._failure = error if isinstance(error, GradwireError) else _wrapped(error)
        unfinished, self._unfinished = self._unfinished, {}
        while not self._inbox.empty():
            request = self._inbox.get()
            if isinstance(request, BucketRequest):
                unfinished[-1 - len(unfinished)] = request.done
        for done in unfinished.values():
            done(self._failure)

    def _drain_inbox(self) -> None:
        while not self._inbox.empty():
            request = self._inbox.get()
            if isinstance(request, BucketRequest):
                self._accept_request(request)
            elif request is not None:
                request()
        self._admit()

    # ---- members lost, back, and gone for good -------------------------------------------------------------------
    def set_replica_state(self, state: TransferableState) -> None:
        """From any thread: this is what a member that comes back is handed, and what this one becomes if it is it."""

        def begin() -> None:
            if self.catch_up is not None:
                self.catch_up.state, self.member.returning = state, self._config.rejoin > 0

        self.ask(begin)

    def _lose(self, error: LostPeerError) -> None:
        """Nothing more is expected of this peer; the policy finds out who goes on."""
        peer, now = error.peer, self._clock.now()
        self.frame_io.drop(peer)
        self.frame_io.disconnected.add(peer)
        self.member.reach.discard(peer)
        if self._closing:
            return
        if self.member.returning and not error.left:
            self.reconnector.reconnect(peer, now + self._config.rejoin)
        if peer in self.member.alive:
            self.on_loss(peer, str(error))
            self.member.lost(peer, now)

    def _announce_leave(self) -> None:
        """Others hear that this is no loss."""
        assert self.catch_up is not None
        for peer in self.member.reach:
            self.catch_up.send(peer, self.member.leave())

    def _regroup(self, snapshot: StepSnapshot, catch_up: CatchUp) -> None:
        """Stop when the epoch ends; begin again, or catch up, when the next one is there."""
        member, now = self.member, self._clock.now()
        # A replica changes only while its training waits here for a whole step; the others would wait for that.
        member.willing = snapshot.closed
        for peer in self.reconnector.moved(self.frame_io.left - set(member.members)):
            # It left, or failed and said so; a new process has its place.
            self.frame_io.left.discard(peer)
            member.parted.pop(peer, None)
            self.reconnector.reconnect(peer, now + self._config.rejoin)
        for peer in self.reconnector.poll(now):
            self.frame_io.disconnected.discard(peer)
            self.on_reconnect(peer)
            member.reached(peer)
        for peer in self.frame_io.disconnected & member.alive:
            member.lost(peer, now)  # a new epoch still counted it in
        for peer in () if self._closing else member.overdue():
            why = f"rank {peer} left in order after step {member.parted[peer].step}"
            self._lose(LostPeerError(peer, why, left=True))
        if self._step is not None and (self._stopped or member.epoch != self._step.tag.epoch):
            self._halt()
        self._require_peers(now)
        if self._halted and not self._stopped:
            self._halted, self._waiting_since = False, None
            for request in snapshot.rewind():
                self._start_request(request)
            self._admit()
        elif self._halted and member.behind is not None and snapshot.closed and not member.asking:
            catch_up.catch_up(self._results_arrived, self._rejoined)
        if self._step is not None and not self._stopped:
            for peer, nbytes in catch_up.serve_states():
                self.on_rejoin(peer, f"it is taken back at step {member.step} and handed {nbytes / 1e6:.1f} MB")

    @property
    def _stopped(self) -> bool:
        """Whether no step may begin or end."""
        return self.member.stopped or self.member.asking

    def _require_peers(self, now: float) -> None:
        """LinkError for a member that cannot go on and is not, or no more, to wait for the others."""
        member, since = self.member, self.member.adrift_since
        if not member.returning:
            if member.fresh and member.willing:
                raise LinkError(
                    f"rank {member.rank} was started anew and cannot be taken in: call handle.hand_over(...) before "
                    "the first step, and leave planning.rejoin above 0"
                )
            member.require_quorum()
        elif since is not None and not self._closing:
            self._waiting_since = since
            if self._peers <= self.frame_io.left:
                raise LinkError(f"the others ended the job while rank {member.rank} was cut off")
            if now - since > self._config.rejoin and member.fresh:
                raise LinkError(
                    f"rank {member.rank} was not taken in within {now - since:.0f} s (planning.rejoin): does it reach "
                    "all the others, with the same secret, do they still wait for it, and is the old process dead?"
                )
            if now - since > self._config.rejoin:
                raise LinkError(
                    f"rank {member.rank} was cut off for {now - since:.0f} s and waits no longer (planning.rejoin); "
                    "restart it from the last checkpoint with the others"
                )

    def _halt(self) -> None:
        self.frame_io.drop_step_data()
        self._waiting.clear()
        self._held = self._active = 0
        self._step, self._halted = None, True

    def _results_arrived(self, step: int) -> None:
        """The results that this member missed are in its parcels."""
        assert self._snapshot is not None
        self._halted = False
        self._finish_requests(self._snapshot, step)

    def _rejoined(self, step: int) -> None:
        away = self._clock.now() - self._waiting_since if self._waiting_since is not None else 0.0
        self.on_rejoin(self.member.rank, f"it was cut off for {away:.1f} s and is taken back at step {step + 1}")

    def _finish_requests(self, snapshot: StepSnapshot, step: int) -> None:
        for request in snapshot.end(step):
            self._unfinished.pop(request.bucket.index)(None)

    # ---- steps ---------------------------------------------------------------------------------------------------
    def _accept_request(self, request: BucketRequest) -> None:
        self._unfinished[request.bucket.index] = request.done
        if self._snapshot is not None:
            self._snapshot.add(request)
            self._halted = self._halted or (self._step is None and self._stopped)
        if not self._halted:
            self._start_request(request)

    def _start_request(self, request: BucketRequest) -> None:
        step = self._step_of(request.bucket)
        if step.level is not None:
            request = replace(request, level=step.level)
        numel = request.bucket.numel
        pieces = step.partitioner.partition(numel, frame_bytes(request.level, numel) / (4 * numel))
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
            if left == 0 and self._snapshot is None:
                self._unfinished.pop(request.bucket.index)(None)

        for piece in pieces:
            self._waiting.append((self._weight(step, request, piece), self._reduction(step, request, piece, restored)))
        if not pieces and self._snapshot is None:
            self._unfinished.pop(request.bucket.index)(None)

    def _step_of(self, bucket: Bucket) -> _Step:
        if self._step is None:
            tag = self.member.begin_step()
            if tag is None:
                raise LinkError(f"rank {self.member.rank} is not a member of the job any more")
            plan = self.member.plan
            if self.side_routes is not None:
                self.side_routes.learn(plan, tag.epoch)
            level = _level_of(plan)
            self._step = _Step(tag, plan, roles_of(plan, self.member.rank), Partitioner(plan), level)
        return self._step

    def _complete(self, step: _Step) -> None:
        if not self.member.complete_step(step.tag, step.vote):
            return  # an epoch ended in between: the step is done again
        self.used_level = step.level
        self._step = None
        if self._snapshot is not None:
            self._finish_requests(self._snapshot, step.tag.step)

    def _weight(self, step: _Step, request: BucketRequest, piece: Piece) -> int:
        """Bytes that a piece's frames may come to here; levels only make them smaller."""
        return 4 * piece.numel * (1 + step.roles[piece.tree].receives)

    def _reduction(
        self, step: _Step, request: BucketRequest, piece: Piece, restored: Callable[[int], None]
    ) -> Callable[[], None]:
        weight = self._weight(step, request, piece)
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
            self._admit()

        return PieceReduction(self.frame_io, step.roles[piece.tree], task, restored, ended).begin

    def _admit(self) -> None:
        while self._waiting and (not self._active or self._held + self._waiting[0][0] <= BUDGET):
            weight, begin = self._waiting.popleft()
            self._held += weight
            self._active += 1
            begin()


def _level_of(plan: Plan) -> Level | None:
    """IntegrityError for a level that no member can have meant."""
    if not plan.level:
        return None
    try:
        level = Level.parse(plan.level)
        check_summable(level)
    except ConfigError as error:
        raise IntegrityError(f"plan {plan.version} has a level that cannot be used: {error}") from error
    return level


def _wrapped(error: BaseException) -> BaseException:
    return LinkError(f"the walker stopped: {type(error).__name__}: {error}")
