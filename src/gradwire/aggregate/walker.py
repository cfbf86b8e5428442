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
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from gradwire.aggregate.deal import Dealer, Piece
from gradwire.aggregate.envelope import result_tag
from gradwire.aggregate.keep import Keep
from gradwire.aggregate.parcel import Done, Parcel
from gradwire.aggregate.port import LostPeerError, Port
from gradwire.aggregate.portion import check_summable
from gradwire.aggregate.role import Role, roles_of
from gradwire.aggregate.sides import Sides
from gradwire.aggregate.walk import Errand, Walk
from gradwire.clock import Clock, MonotonicClock
from gradwire.errors import GradwireError, LinkError
from gradwire.flow import Bucket, Plan
from gradwire.plan.messages import NO_VOTE, Tag
from gradwire.plan.policy import Member

# Bytes of frames that pieces under way may hold: enough for the widest pipe, little beside a model.
BUDGET: Final = 96 << 20
# The thread looks at deadlines and control at least this often (seconds), also when nothing happens.
TICK: Final = 0.25


@dataclass(frozen=True, slots=True)
class WalkConfig:
    """`tolerance` is the fraction of a contribution that must reach the root; 1 is everything.

    `side` lets pieces take side routes. `elastic` lets others go on when a member is lost (`plan.regroup` says who).
    """

    timeout: float = 120.0
    tolerance: float = 1.0
    stochastic: bool = True
    side: bool = False
    elastic: bool = False


@dataclass(slots=True)
class _Step:
    """The step under way: its tag and plan, and what is left of it."""

    tag: Tag
    plan: Plan
    roles: tuple[Role, ...]
    dealer: Dealer
    left: int = 0
    closed: bool = False
    vote: int = NO_VOTE


class Walker:
    """Owns its thread and the port; the wire belongs to the caller."""

    def __init__(self, wire: Any, member: Member, config: WalkConfig | None = None, clock: Clock | None = None) -> None:
        self.member = member
        self._config = config or WalkConfig()
        self._clock = clock or MonotonicClock()
        # Where others go on without a lost member, a goodbye is a loss too: they must agree on who is left.
        self.port = Port(wire, self._clock, self._config.timeout, part_in_peace=not self._config.elastic)
        self.sides = Sides(member.rank, self.port) if self._config.side else None
        self._inbox: queue.SimpleQueue[Parcel | Callable[[], object] | None] = queue.SimpleQueue()
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._held = self._active = 0
        self._step: _Step | None = None
        self._keep = Keep() if self._config.elastic else None
        self._halted = self._fetching = False
        self._unfinished: dict[int, Done] = {}
        self._failure: BaseException | None = None
        self._closing = False
        self.chores: list[Callable[[float], None]] = []
        self.on_failure: list[Callable[[BaseException], None]] = []
        self.on_loss: Callable[[int, str], None] = lambda peer, why: None
        self.ask_result: Callable[[int, int], None] = lambda holder, step: None
        self._thread = threading.Thread(target=self._run, name="gradwire-walk", daemon=True)
        self._lock = threading.Lock()

    @property
    def elastic(self) -> bool:
        return self._config.elastic

    def start(self) -> None:
        self._thread.start()

    def now(self) -> float:
        return self._clock.now()

    def submit(self, parcel: Parcel) -> None:
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
        """Let frames that others still need go out, then stop the thread."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
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
            while not (self._closing and (self.port.idle or self._clock.now() > deadline)):
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
            self._lose(error.peer, str(error))
        if self._keep is not None:
            self._regroup(self._keep)

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
            if isinstance(parcel, Parcel):
                unfinished[-1 - len(unfinished)] = parcel.done
        for done in unfinished.values():
            done(self._failure)

    def _take_in(self) -> None:
        while not self._inbox.empty():
            parcel = self._inbox.get()
            if isinstance(parcel, Parcel):
                self._receive(parcel)
            elif parcel is not None:
                parcel()
        self._admit()

    # ---- members lost --------------------------------------------------------------------------------------------
    def _lose(self, peer: int, why: str) -> None:
        """Nothing more is expected of this peer; the policy finds out who goes on."""
        self.port.forget(peer)
        if peer in self.member.alive:
            self.on_loss(peer, why)
            self.member.lost(peer, self._clock.now())

    def _regroup(self, keep: Keep) -> None:
        """Stop when the epoch ends; begin again, or catch up, when the next one is there."""
        member, step = self.member, self._step
        if step is not None and (member.stopped or member.epoch != step.tag.epoch):
            self._halt()
        member.require_quorum()
        if self._halted and not member.stopped:
            self._halted = self._fetching = False
            for parcel in keep.rewind():
                self._unpack(parcel)
            self._admit()
        elif self._halted and member.behind is not None and keep.closed and not self._fetching:
            self._fetch(keep, *member.behind)

    def _halt(self) -> None:
        self.port.forget_data()
        self._waiting.clear()
        self._held = self._active = 0
        self._step, self._halted = None, True

    def _fetch(self, keep: Keep, holder: int, step: int) -> None:
        """This member missed the end of the step: ask who has it for every bucket's result."""
        self._fetching = True
        left = len(keep.parcels)

        def arrived(parcel: Parcel, frame: Tensor) -> None:
            nonlocal left
            parcel.gradient.copy_(frame.view(torch.float32))
            left -= 1
            if not left:
                self.member.caught_up(step)
                self._halted = self._fetching = False
                self._tell(keep, step)

        for parcel in keep.parcels:
            tag, size = result_tag(step, parcel.bucket.index), 4 * parcel.gradient.numel()
            self.port.post(holder, tag, size, lambda frame, _, parcel=parcel: arrived(parcel, frame))  # type: ignore[misc]
        self.ask_result(holder, step)

    def serve_result(self, peer: int, step: int) -> None:
        """Hand the last step's results to a member that missed them."""
        for index, result in (self._keep.results(step) if self._keep else {}).items():
            self.port.send(peer, result_tag(step, index), result.clone().view(torch.uint8))

    def _tell(self, keep: Keep, step: int) -> None:
        for parcel in keep.end(step):
            self._unfinished.pop(parcel.bucket.index)(None)

    # ---- steps ---------------------------------------------------------------------------------------------------
    def _receive(self, parcel: Parcel) -> None:
        self._unfinished[parcel.bucket.index] = parcel.done
        if self._keep is not None:
            self._keep.add(parcel)
            self._halted = self._halted or (self._step is None and self.member.stopped)
        if not self._halted:
            self._unpack(parcel)

    def _unpack(self, parcel: Parcel) -> None:
        step = self._step_of(parcel.bucket)
        pieces = step.dealer.deal(parcel.bucket.numel)
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
                self.sides.learn(plan)
            self._step = _Step(tag, plan, roles_of(plan, self.member.rank), Dealer(plan))
        return self._step

    def _complete(self, step: _Step) -> None:
        if not self.member.complete_step(step.tag, step.vote):
            return  # an epoch ended in between: the step is done again
        self._step = None
        if self._keep is not None:
            self._tell(self._keep, step.tag.step)

    def _weight(self, step: _Step, parcel: Parcel, piece: Piece) -> int:
        """Bytes that a piece's frames may come to here; levels only make them smaller."""
        return 4 * piece.numel * (1 + step.roles[piece.tree].receives)

    def _walk(self, step: _Step, parcel: Parcel, piece: Piece, restored: Callable[[int], None]) -> Callable[[], None]:
        weight = self._weight(step, parcel, piece)
        part = slice(piece.start, piece.start + piece.numel)
        errand = Errand(
            self.member.rank, self.member.members, step.tag, parcel.bucket.index, piece, parcel.level,
            parcel.gradient[part], parcel.residual[part], self._config.stochastic, self._config.tolerance,
            self.sides, parcel.weight,
        )  # fmt: skip

        def ended() -> None:
            self._held -= weight
            self._active -= 1
            self._admit()

        return Walk(self.port, step.roles[piece.tree], errand, restored, ended).begin

    def _admit(self) -> None:
        while self._waiting and (not self._active or self._held + self._waiting[0][0] <= BUDGET):
            weight, begin = self._waiting.popleft()
            self._held += weight
            self._active += 1
            begin()


def _wrapped(error: BaseException) -> BaseException:
    return LinkError(f"the walker stopped: {type(error).__name__}: {error}")
