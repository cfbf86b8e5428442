"""Walk: one piece's way through its tree, as one member sees it.

    1. (sharedk) the round's leader sends its places up to the root, the root sends them down to all
    2. children's sums are added as they arrive, on top of this member's own gradient
    3. the sum goes up; at the root it is divided by its contributors and becomes the result
    4. the result comes down and is passed on as it is, so that every member restores the same bytes
    and frames of edges that lead through this member are relayed

Votes of the plan's policy are merged on the way up and come back with the result. Runs on the walker's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.compress.base import ChunkSpan
from gradwire.compress.shared_mask import SharedMaskCodec
from gradwire.level import Level
from gradwire.plan.membership.messages import Tag, merged
from gradwire.transport.wires.base import RELIABLE, Delivery
from gradwire.tree.accumulator import (
    Accumulator,
    AccumulatorBody,
    DenseAccumulator,
    SharedMaskAccumulator,
    form_of,
    random_places,
)
from gradwire.tree.frame_header import SIZE, FrameHeader, wire_tag
from gradwire.tree.frame_io import FrameIO
from gradwire.tree.frame_layout import FrameLayout, hop_tolerance
from gradwire.tree.partition import Piece
from gradwire.tree.role import Phase, Role, TreeEdge
from gradwire.tree.side_routes import SideRoutes

# Edges on which a leader's places go up are told from those on which they come down by this bit.
_LED = 1 << 13


@dataclass(frozen=True, slots=True)
class PieceTask:
    """What a walk is about: the piece's numbers, its level, its step's tag, and who asks."""

    rank: int
    members: tuple[int, ...]
    tag: Tag
    bucket: int
    piece: Piece
    level: Level
    gradient: Tensor
    residual: Tensor
    stochastic: bool
    tolerance: float
    sides: SideRoutes | None = None
    weight: int = 1

    @property
    def stretch(self) -> ChunkSpan:
        return ChunkSpan(self.tag.step, self.bucket, self.piece.start, self.piece.numel)

    @property
    def seed(self) -> int | None:
        return self.stretch.seed(self.rank) if self.stochastic else None


class PieceReduction:
    """`restored(vote)` is called when the gradient holds the mean, `ended()` when nothing more is under way."""

    def __init__(
        self, port: FrameIO, role: Role, errand: PieceTask, restored: Callable[[int], None], ended: Callable[[], None]
    ) -> None:
        self._port, self._role, self._errand = port, role, errand
        self._sides = errand.sides
        self._restored, self._ended = restored, ended
        self._form = form_of(errand.level)
        self._order = (errand.tag.step, errand.bucket, errand.piece.index)
        self._open = 0
        self._vote = errand.tag.vote
        self._contributors = errand.weight
        self._waiting = len(role.children)
        self._portion: Accumulator | None = None
        self._layout = self._down = FrameLayout(AccumulatorBody("fp32", 0))
        self._counts: Tensor | None = None

    def begin(self) -> None:
        self._open += 1  # held until the end of this method: callbacks come later, but ends may be counted here
        level, errand = self._errand.level, self._errand
        if level.select == "sharedk":
            self._agree_on_places()
        elif level.select == "randk":
            self._start(
                SharedMaskAccumulator(level.values, errand.gradient, errand.residual, self._drawn(), errand.seed)
            )
        else:
            self._start(DenseAccumulator(level.values, errand.gradient, errand.residual, errand.seed))
        self._close()

    # ---- 1. places -----------------------------------------------------------------------------------------------
    def _drawn(self) -> Tensor:
        return random_places(self._errand.level, self._errand.stretch)

    def _agree_on_places(self) -> None:
        errand, role = self._errand, self._role
        leader = errand.members[(errand.tag.step + errand.piece.index) % len(errand.members)]
        way, size = role.way_up(leader), SharedMaskCodec(errand.level).mask_size(errand.piece.numel)
        for relay in role.relays:
            if relay.phase is Phase.DOWN:
                self._relay(Phase.MASK, relay.end, (relay.before, relay.after), size)
            elif relay.end in way[:-1]:
                self._relay(Phase.MASK, relay.end | _LED, (relay.before, relay.after), size)
        if role.source is not None:
            self._post(Phase.MASK, role.source, size, lambda frame, _: self._told_places(frame))
        if errand.rank == leader:
            frame = self._port.take(size)
            SharedMaskCodec(errand.level).lead(errand.gradient, errand.residual, frame)
            self._pass_places(frame)
        elif errand.rank in way:
            child = way[way.index(errand.rank) - 1]
            edge = next(edge for edge in role.children if edge.end == child)
            self._post(Phase.MASK, TreeEdge(child | _LED, edge.hop), size, lambda frame, _: self._pass_places(frame))

    def _pass_places(self, frame: Tensor) -> None:
        up = self._role.up
        if up is None:
            self._told_places(frame)
        else:
            self._send(Phase.MASK, TreeEdge(up.end | _LED, up.hop), frame, lambda _: self._port.give(frame))

    def _told_places(self, frame: Tensor) -> None:
        errand = self._errand
        mask = SharedMaskCodec(errand.level).follow(frame, errand.piece.numel)
        self._hand_down(Phase.MASK, frame)
        self._start(SharedMaskAccumulator(errand.level.values, errand.gradient, errand.residual, mask, errand.seed))

    # ---- 2. and 3. up --------------------------------------------------------------------------------------------
    def _start(self, portion: Accumulator) -> None:
        role = self._role
        self._portion = portion
        self._down = FrameLayout(portion.body)
        self._layout = FrameLayout(portion.body, hop_tolerance(self._errand.tolerance, role.depth))
        if self._layout.tolerant:
            self._counts = torch.full((portion.body.cells,), self._errand.weight, dtype=torch.int16)
        for relay in role.relays:
            layout = self._layout if relay.phase is Phase.UP else self._down
            self._relay(relay.phase, relay.end, (relay.before, relay.after), layout.nbytes)
        if role.source is not None:
            self._post(Phase.DOWN, role.source, self._down.nbytes, lambda frame, _: self._result(frame))
        for child in role.children:
            self._post(Phase.UP, child, self._layout.nbytes, self._heard)
        portion.begin()
        if not self._waiting:
            self._summed()

    def _heard(self, frame: Tensor, delivery: Delivery) -> None:
        assert self._portion is not None
        envelope = self._opened(frame)
        self._vote = merged(self._vote, envelope.tag.vote)
        self._contributors += envelope.contributors
        self._portion.absorb(self._layout.body_of(frame))
        if self._counts is not None:
            theirs = self._layout.counts_of(frame)
            theirs[self._layout.missing(delivery)] = 0
            self._counts += theirs
        self._port.give(frame)
        self._waiting -= 1
        if not self._waiting:
            self._summed()

    def _summed(self) -> None:
        assert self._portion is not None
        up, layout = self._role.up, self._layout
        if up is None:
            self._settle()
            return
        frame = self._sealed(layout)
        self._portion.pack(layout.body_of(frame))
        if self._counts is not None:
            layout.counts_of(frame).copy_(self._counts)
        self._send(Phase.UP, up, frame, lambda delivery: self._delivered(frame, delivery))

    def _delivered(self, frame: Tensor, delivery: Delivery) -> None:
        """What the parent did not get waits here; the result that comes back was divided by those who were heard."""
        lost = self._layout.missing(delivery)
        if lost:
            assert self._portion is not None
            self._portion.reclaim(self._layout.body_of(frame), lost)
        self._port.give(frame)

    def _settle(self) -> None:
        assert self._portion is not None
        counts: float | Tensor = float(self._contributors)
        if self._counts is not None:
            # Nobody at all is in a cell when the root itself contributes nothing and every child's part was lost.
            counts = self._portion.body.spread(self._counts.clamp(min=1))
        frame = self._sealed(self._down)
        self._portion.settle(self._down.body_of(frame), counts)
        self._result(frame)

    # ---- 4. down -------------------------------------------------------------------------------------------------
    def _result(self, frame: Tensor) -> None:
        assert self._portion is not None
        envelope = self._opened(frame)
        self._portion.restore(self._down.body_of(frame))
        self._hand_down(Phase.DOWN, frame)
        self._restored(envelope.tag.vote)

    def _hand_down(self, phase: Phase, frame: Tensor) -> None:
        left = len(self._role.heirs)

        def sent(_: Delivery) -> None:
            nonlocal left
            left -= 1
            if not left:
                self._port.give(frame)

        for heir in self._role.heirs:
            self._send(phase, heir, frame, sent)
        if not left:
            self._port.give(frame)

    # ---- frames --------------------------------------------------------------------------------------------------
    def _sealed(self, layout: FrameLayout) -> Tensor:
        errand = self._errand
        frame = self._port.take(layout.nbytes)
        tag = Tag(errand.tag.epoch, errand.tag.version, errand.tag.step, self._vote)
        FrameHeader(tag, self._contributors, errand.piece.numel, self._form).write(frame[:SIZE])
        return frame

    def _opened(self, frame: Tensor) -> FrameHeader:
        envelope = FrameHeader.read(frame[:SIZE])
        envelope.check(self._errand.tag, self._errand.piece.numel, self._form)
        return envelope

    def _tag(self, phase: Phase, end: int) -> int:
        return wire_tag(self._errand.tag, self._errand.bucket, self._errand.piece.index, phase, end)

    def _post(self, phase: Phase, edge: TreeEdge, nbytes: int, arrived: Callable[[Tensor, Delivery], None]) -> None:
        self._open += 1

        def came(frame: Tensor, delivery: Delivery) -> None:
            arrived(frame, delivery)
            self._close()

        self._port.post(edge.hop, self._tag(phase, edge.end), nbytes, came)

    def _send(self, phase: Phase, edge: TreeEdge, frame: Tensor, sent: Callable[[Delivery], None]) -> None:
        self._open += 1
        contract = self._layout.contract if phase is Phase.UP and edge.direct else RELIABLE

        def went(delivery: Delivery) -> None:
            sent(delivery)
            self._close()

        tag = self._tag(phase, edge.end)
        if not (edge.direct and self._sides is not None and self._sides.offer(edge.hop, tag, frame, went)):
            self._port.send(edge.hop, tag, frame, contract, went, order=self._order)

    def _relay(self, phase: Phase, end: int, hops: tuple[int, int], nbytes: int) -> None:
        """Pass a frame on as it came."""
        before, after = hops

        def passed(frame: Tensor, _: Delivery) -> None:
            self._send_on(phase, TreeEdge(end, after), frame)

        self._post(phase, TreeEdge(end, before), nbytes, passed)

    def _send_on(self, phase: Phase, edge: TreeEdge, frame: Tensor) -> None:
        self._open += 1

        def went(_: Delivery) -> None:
            self._port.give(frame)
            self._close()

        self._port.send(edge.hop, self._tag(phase, edge.end), frame, sent=went, order=self._order)

    def _close(self) -> None:
        self._open -= 1
        if not self._open:
            self._ended()
