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
from collections.abc import Callable
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
    dealer: Partitioner
    # Where the plan decides the level of its steps.
    level: Level | None = None
    left: int = 0
    closed: bool = False
    vote: int = NO_VOTE


class TreeExecutor:
    """Owns its thread and the port; the wire belongs to the caller."""

    def __init__(
        self, wire: Any, member: Member, config: ExecutorConfig | None = None, clock: Clock | None = None
    ) -> None:
        self.member = member
        self._config = config or ExecutorConfig()
        self._clock = clock or MonotonicClock()
        # Where others go on without a lost member, they must know up to which step it took part: its own word for it,
        # not the wire's, makes a goodbye.
        self.port = FrameIO(wire, self._clock, self._config.timeout, part_in_peace=not self._config.elastic)
        self.sides = SideRoutes(member.rank, self.port) if self._config.side else None
        self._inbox: queue.SimpleQueue[BucketRequest | Callable[[], object] | None] = queue.SimpleQueue()
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._held = self._active = 0
        self._step: _Step | None = None
        # The level of the last step that was completed, where the plan decides it.
        self.used: Level | None = None
        self._keep = StepSnapshot() if self._config.elastic else None
        self._halted = False
        self.bequest = CatchUp(self.port, member, self._keep) if self._keep is not None else None
        self.redial = Reconnector(wire)
        self._adrift: float | None = None
        self._peers = set(member.members) - {member.rank}
        self._unfinished: dict[int, Done] = {}
        self._failure: BaseException | None = None
        self._closing = False
        self.chores: list[Callable[[float], None]] = []
        self.on_failure: list[Callable[[BaseException], None]] = []
        self.on_loss: Callable[[int, str], None] = lambda peer, why: None
        self.on_return: Callable[[int, str], None] = lambda rank, how: None
        self.reopened: Callable[[int], None] = lambda peer: None
        self._thread = threading.Thread(target=self._run, name="gradwire-walk", daemon=True)
        self._lock = threading.Lock()

    @property
    def elastic(self) -> bool:
        return self._config.elastic

    def start(self) -> None:
        self._thread.start()

    def start_apart(self) -> None:
        """As a member that is connected to nobody yet, and asks to be taken in."""
        self.port.cut |= self._peers
        self.member.reach.clear()
        for peer in self._peers:
            self.redial.call(peer, self._clock.now() + self._config.rejoin)
        self.start()

    def now(self) -> float:
        return self._clock.now()

    def submit(self, parcel: BucketRequest) -> None:
        """From any thread; buckets of all ranks in the same order. `done` is called once, from the walker's thread."""
        check_summable(parcel.level)
        with self._lock:
            if self._failure is None and not self._closing:
                self._inbox.put(parcel)
                self.port.nudge()
                return
        parcel.done(self._failure or LinkError("the walker was closed"))

    def ask(self, errand: Callable[[], object]) -> None:
        """Have something done on the walker's thread, which is the only one that may touch member and port."""
        self._inbox.put(errand)
        self.port.nudge()

    def close(self, timeout: float = 10.0) -> None:
        """Let frames that others still need go out, then stop the thread. After an error, call it again."""
        with self._lock:
            again, self._closing = self._closing, True
            if again and not self._thread.is_alive():
                return
            if not again and self._keep is not None and self._failure is None:
                self._inbox.put(self._take_leave)
        if not again:
            self._inbox.put(None)
            self.port.nudge()
        if self._thread.is_alive():
            self._thread.join(timeout)
        if self._thread.is_alive():
            raise LinkError(f"the walker still waits for a peer after {timeout:g} s")
        self.port.close()

    # ---- the thread ----------------------------------------------------------------------------------------------
    def _run(self) -> None:
        deadline = float("inf")
        try:
            while not (self._closing and self._inbox.empty() and (self.port.idle or self._clock.now() > deadline)):
                if self._closing and deadline == float("inf"):
                    deadline = self._clock.now() + 5.0
                self._turn()
        except BaseException as error:  # the top of this thread: everybody who waits hears it
            self._fail(error)
            self._say_goodbye()

    def _turn(self) -> None:
        try:
            self._take_in()
            self.port.turn(TICK)
            for chore in self.chores:
                chore(self._clock.now())
        except LostPeerError as error:
            if self._keep is None:
                raise
            self._lose(error)
        if self._keep is not None and self.bequest is not None:
            self._regroup(self._keep, self.bequest)

    def _say_goodbye(self) -> None:
        """Others hear why; a second at most, whatever the wire's state."""
        assert self._failure is not None
        deadline = self._clock.now() + 1.0
        try:
            self.port.forget()
            for tell in self.on_failure:
                tell(self._failure)
            while not self.port.idle and self._clock.now() < deadline:
                self.port.turn(deadline - self._clock.now())
        except Exception:  # the failure itself has been told already; what comes on top changes nothing
            return

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._failure = error if isinstance(error, GradwireError) else _wrapped(error)
        unfinished, self._unfinished = self._unfinished, {}
        while not self._inbox.empty():
            parcel = self._inbox.get()
            if isinstance(parcel, BucketRequest):
                unfinished[-1 - len(unfinished)] = parcel.done
        for done in unfinished.values():
            done(self._failure)

    def _take_in(self) -> None:
        while not self._inbox.empty():
            parcel = self._inbox.get()
            if isinstance(parcel, BucketRequest):
                self._receive(parcel)
            elif parcel is not None:
                parcel()
        self._admit()

    # ---- members lost, back, and gone for good -------------------------------------------------------------------
    def hand_over(self, estate: TransferableState) -> None:
        """From any thread: this is what a member that comes back is handed, and what this one becomes if it is it."""

        def begin() -> None:
            if self.bequest is not None:
                self.bequest.estate, self.member.returning = estate, self._config.rejoin > 0

        self.ask(begin)

    def _lose(self, error: LostPeerError) -> None:
        """Nothing more is expected of this peer; the policy finds out who goes on."""
        peer, now = error.peer, self._clock.now()
        self.port.forget(peer)
        self.port.cut.add(peer)
        self.member.reach.discard(peer)
        if self._closing:
            return
        if self.member.returning and not error.farewell:
            self.redial.call(peer, now + self._config.rejoin)
        if peer in self.member.alive:
            self.on_loss(peer, str(error))
            self.member.lost(peer, now)

    def _take_leave(self) -> None:
        """Others hear that this is no loss."""
        assert self.bequest is not None
        for peer in self.member.reach:
            self.bequest.tell(peer, self.member.leave())

    def _regroup(self, keep: StepSnapshot, bequest: CatchUp) -> None:
        """Stop when the epoch ends; begin again, or catch up, when the next one is there."""
        member, now = self.member, self._clock.now()
        # A replica changes only while its training waits here for a whole step; the others would wait for that.
        member.willing = keep.closed
        for peer in self.redial.elsewhere(self.port.left - set(member.members)):
            # It left, or failed and said so; a new process has its place.
            self.port.left.discard(peer)
            member.parted.pop(peer, None)
            self.redial.call(peer, now + self._config.rejoin)
        for peer in self.redial.turn(now):
            self.port.cut.discard(peer)
            self.reopened(peer)
            member.reached(peer)
        for peer in self.port.cut & member.alive:
            member.lost(peer, now)  # a new epoch still counted it in
        for peer in () if self._closing else member.overdue():
            why = f"rank {peer} left in order after step {member.parted[peer].step}"
            self._lose(LostPeerError(peer, why, farewell=True))
        if self._step is not None and (self._still or member.epoch != self._step.tag.epoch):
            self._halt()
        self._require_company(now)
        if self._halted and not self._still:
            self._halted, self._adrift = False, None
            for parcel in keep.rewind():
                self._unpack(parcel)
            self._admit()
        elif self._halted and member.behind is not None and keep.closed and not member.asking:
            bequest.catch_up(self._ended, self._became)
        if self._step is not None and not self._still:
            for peer, nbytes in bequest.hand_out():
                self.on_return(peer, f"it is taken back at step {member.step} and handed {nbytes / 1e6:.1f} MB")

    @property
    def _still(self) -> bool:
        """Whether no step may begin or end."""
        return self.member.stopped or self.member.asking

    def _require_company(self, now: float) -> None:
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
            self._adrift = since
            if self._peers <= self.port.left:
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
        self.port.forget_data()
        self._waiting.clear()
        self._held = self._active = 0
        self._step, self._halted = None, True

    def _ended(self, step: int) -> None:
        """The results that this member missed are in its parcels."""
        assert self._keep is not None
        self._halted = False
        self._tell(self._keep, step)

    def _became(self, step: int) -> None:
        away = self._clock.now() - self._adrift if self._adrift is not None else 0.0
        self.on_return(self.member.rank, f"it was cut off for {away:.1f} s and is taken back at step {step + 1}")

    def _tell(self, keep: StepSnapshot, step: int) -> None:
        for parcel in keep.end(step):
            self._unfinished.pop(parcel.bucket.index)(None)

    # ---- steps ---------------------------------------------------------------------------------------------------
    def _receive(self, parcel: BucketRequest) -> None:
        self._unfinished[parcel.bucket.index] = parcel.done
        if self._keep is not None:
            self._keep.add(parcel)
            self._halted = self._halted or (self._step is None and self._still)
        if not self._halted:
            self._unpack(parcel)

    def _unpack(self, parcel: BucketRequest) -> None:
        step = self._step_of(parcel.bucket)
        if step.level is not None:
            parcel = replace(parcel, level=step.level)
        numel = parcel.bucket.numel
        pieces = step.dealer.deal(numel, frame_bytes(parcel.level, numel) / (4 * numel))
        step.left += len(pieces)
        step.closed = parcel.bucket.is_last
        left = len(pieces)

        def restored(vote: int) -> None:
            nonlocal left
            left -= 1
            step.left -= 1
            step.vote = vote
            if step.left == 0 and step.closed:
                self._complete(step)
            if left == 0 and self._keep is None:
                self._unfinished.pop(parcel.bucket.index)(None)

        for piece in pieces:
            self._waiting.append((self._weight(step, parcel, piece), self._walk(step, parcel, piece, restored)))
        if not pieces and self._keep is None:
            self._unfinished.pop(parcel.bucket.index)(None)

    def _step_of(self, bucket: Bucket) -> _Step:
        if self._step is None:
            tag = self.member.begin_step()
            if tag is None:
                raise LinkError(f"rank {self.member.rank} is not a member of the job any more")
            plan = self.member.plan
            if self.sides is not None:
                self.sides.learn(plan, tag.epoch)
            level = _level_of(plan)
            self._step = _Step(tag, plan, roles_of(plan, self.member.rank), Partitioner(plan), level)
        return self._step

    def _complete(self, step: _Step) -> None:
        if not self.member.complete_step(step.tag, step.vote):
            return  # an epoch ended in between: the step is done again
        self.used = step.level
        self._step = None
        if self._keep is not None:
            self._tell(self._keep, step.tag.step)

    def _weight(self, step: _Step, parcel: BucketRequest, piece: Piece) -> int:
        """Bytes that a piece's frames may come to here; levels only make them smaller."""
        return 4 * piece.numel * (1 + step.roles[piece.tree].receives)

    def _walk(
        self, step: _Step, parcel: BucketRequest, piece: Piece, restored: Callable[[int], None]
    ) -> Callable[[], None]:
        weight = self._weight(step, parcel, piece)
        part = slice(piece.start, piece.start + piece.numel)
        tolerance = 1.0 if parcel.level.off else self._config.tolerance  # `off` promises every bit
        errand = PieceTask(
            self.member.rank, self.member.members, step.tag, parcel.bucket.index, piece, parcel.level,
            parcel.gradient[part], parcel.residual[part], self._config.stochastic, tolerance,
            self.sides, parcel.weight,
        )  # fmt: skip

        def ended() -> None:
            self._held -= weight
            self._active -= 1
            self._admit()

        return PieceReduction(self.port, step.roles[piece.tree], errand, restored, ended).begin

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
