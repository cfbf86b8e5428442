"""Node: what one member does with the frames of one piece: its part in the sum over the tree.

    1. (sharedk) the round's leader sends its indices up to the root, the root sends them down to all
    2. children's sums are added to this member's gradient as they arrive
    3. the sum goes up; at the root it is divided by its contributors and becomes the result
    4. the result comes down and is forwarded unchanged, so every member restores the same bytes
    and frames of edges that are routed through this member are relayed

Votes on plans are merged on the way up and returned with the result. Runs on the executor's thread.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradwire.compress.shared_mask import SharedMaskCodec
from gradwire.plan.membership.messages import Tag, merged
from gradwire.transport.wires.base import RELIABLE, Delivery
from gradwire.tree.accumulator import (
    Accumulator,
    AccumulatorBody,
    DenseAccumulator,
    SharedMaskAccumulator,
    form_of,
    random_mask,
)
from gradwire.tree.frame_header import SIZE, FrameHeader, wire_tag
from gradwire.tree.frame_io import FrameIO
from gradwire.tree.frame_layout import FrameLayout, hop_tolerance
from gradwire.tree.piece_task import PieceTask
from gradwire.tree.role import Phase, Role, TreeEdge

# This bit marks edges on which the leader's indices go up; on the others they come down.
_UPWARD = 1 << 13


class TreeNode:
    """Calls `restored(vote)` when the gradient holds the mean, and `ended()` when no transfer is pending."""

    def __init__(
        self, frame_io: FrameIO, role: Role, task: PieceTask, restored: Callable[[int], None], ended: Callable[[], None]
    ) -> None:
        self._frame_io, self._role, self._task = frame_io, role, task
        self._side_routes = task.side_routes
        self._restored, self._ended = restored, ended
        self._form = form_of(task.level)
        self._order = (task.tag.step, task.bucket, task.piece.index)
        self._open = 0
        self._vote = task.tag.vote
        self._contributors = task.weight
        self._missing_children = len(role.children)
        self._accumulator: Accumulator | None = None
        self._up_layout = self._down_layout = FrameLayout(AccumulatorBody("fp32", 0))
        self._counts: Tensor | None = None

    def begin(self) -> None:
        self._open += 1  # so that `ended` is not called before this method returns
        level, task = self._task.level, self._task
        if level.select == "sharedk":
            self._agree_on_mask()
        elif level.select == "randk":
            self._start(SharedMaskAccumulator(level.values, task.gradient, task.kept, self._random_mask(), task.seed))
        else:
            self._start(DenseAccumulator(level.values, task.gradient, task.kept, task.seed))
        self._transfer_ended()

    # ---- 1. indices ----------------------------------------------------------------------------------------------
    def _random_mask(self) -> Tensor:
        return random_mask(self._task.level, self._task.span)

    def _agree_on_mask(self) -> None:
        task, role = self._task, self._role
        leader = task.members[(task.tag.step + task.piece.index) % len(task.members)]
        route, size = role.path_to_root(leader), SharedMaskCodec(task.level).mask_size(task.piece.numel)
        for relay in role.relays:
            if relay.phase is Phase.DOWN:
                self._relay(Phase.MASK, relay.end, (relay.before, relay.after), size)
            elif relay.end in route[:-1]:
                self._relay(Phase.MASK, relay.end | _UPWARD, (relay.before, relay.after), size)
        if role.source is not None:
            self._post(Phase.MASK, role.source, size, lambda frame, _: self._receive_mask(frame))
        if task.rank == leader:
            frame = self._frame_io.take_buffer(size)
            SharedMaskCodec(task.level).lead(task.gradient, task.residual, frame)
            self._forward_mask(frame)
        elif task.rank in route:
            child = route[route.index(task.rank) - 1]
            edge = next(edge for edge in role.children if edge.end == child)
            self._post(
                Phase.MASK, TreeEdge(child | _UPWARD, edge.hop), size, lambda frame, _: self._forward_mask(frame)
            )

    def _forward_mask(self, frame: Tensor) -> None:
        up = self._role.up
        if up is None:
            self._receive_mask(frame)
        else:
            self._send(
                Phase.MASK, TreeEdge(up.end | _UPWARD, up.hop), frame, lambda _: self._frame_io.release_buffer(frame)
            )

    def _receive_mask(self, frame: Tensor) -> None:
        task = self._task
        mask = SharedMaskCodec(task.level).follow(frame, task.piece.numel)
        self._send_down(Phase.MASK, frame)
        self._start(SharedMaskAccumulator(task.level.values, task.gradient, task.kept, mask, task.seed))

    # ---- 2. and 3. up --------------------------------------------------------------------------------------------
    def _start(self, accumulator: Accumulator) -> None:
        role = self._role
        self._accumulator = accumulator
        self._down_layout = FrameLayout(accumulator.body)
        self._up_layout = FrameLayout(accumulator.body, hop_tolerance(self._task.tolerance, role.depth))
        if self._up_layout.tolerant:
            self._counts = torch.full((accumulator.body.cells,), self._task.weight, dtype=torch.int16)
        for relay in role.relays:
            layout = self._up_layout if relay.phase is Phase.UP else self._down_layout
            self._relay(relay.phase, relay.end, (relay.before, relay.after), layout.nbytes)
        if role.source is not None:
            self._post(Phase.DOWN, role.source, self._down_layout.nbytes, lambda frame, _: self._restore(frame))
        for child in role.children:
            self._post(Phase.UP, child, self._up_layout.nbytes, self._add_child)
        accumulator.begin()
        if not self._missing_children:
            self._send_sum()

    def _add_child(self, frame: Tensor, delivery: Delivery) -> None:
        assert self._accumulator is not None
        header = self._read_header(frame)
        self._vote = merged(self._vote, header.tag.vote)
        self._contributors += header.contributors
        self._accumulator.add(self._up_layout.body_of(frame))
        if self._counts is not None:
            theirs = self._up_layout.counts_of(frame)
            theirs[self._up_layout.missing(delivery)] = 0
            self._counts += theirs
        self._frame_io.release_buffer(frame)
        self._missing_children -= 1
        if not self._missing_children:
            self._send_sum()

    def _send_sum(self) -> None:
        assert self._accumulator is not None
        up, layout = self._role.up, self._up_layout
        if up is None:
            self._finish_at_root()
            return
        frame = self._new_frame(layout)
        self._accumulator.pack(layout.body_of(frame))
        if self._counts is not None:
            layout.counts_of(frame).copy_(self._counts)
        self._send(Phase.UP, up, frame, lambda delivery: self._delivered(frame, delivery))

    def _delivered(self, frame: Tensor, delivery: Delivery) -> None:
        """Cells that the parent did not receive return to the residual; the root did not count them."""
        lost = self._up_layout.missing(delivery)
        if lost:
            assert self._accumulator is not None
            self._accumulator.reclaim(self._up_layout.body_of(frame), lost)
        self._frame_io.release_buffer(frame)

    def _finish_at_root(self) -> None:
        assert self._accumulator is not None
        counts: float | Tensor = float(self._contributors)
        if self._counts is not None:
            # A cell has no contributor when the root adds nothing and every child's cell was lost.
            counts = self._accumulator.body.spread(self._counts.clamp(min=1))
        frame = self._new_frame(self._down_layout)
        self._accumulator.write_mean(self._down_layout.body_of(frame), counts)
        self._restore(frame)

    # ---- 4. down -------------------------------------------------------------------------------------------------
    def _restore(self, frame: Tensor) -> None:
        assert self._accumulator is not None
        header = self._read_header(frame)
        self._accumulator.restore(self._down_layout.body_of(frame))
        self._send_down(Phase.DOWN, frame)
        self._restored(header.tag.vote)

    def _send_down(self, phase: Phase, frame: Tensor) -> None:
        left = len(self._role.receivers)

        def sent(_: Delivery) -> None:
            nonlocal left
            left -= 1
            if not left:
                self._frame_io.release_buffer(frame)

        for receiver in self._role.receivers:
            self._send(phase, receiver, frame, sent)
        if not left:
            self._frame_io.release_buffer(frame)

    # ---- frames --------------------------------------------------------------------------------------------------
    def _new_frame(self, layout: FrameLayout) -> Tensor:
        task = self._task
        frame = self._frame_io.take_buffer(layout.nbytes)
        tag = Tag(task.tag.epoch, task.tag.version, task.tag.step, self._vote)
        FrameHeader(tag, self._contributors, task.piece.numel, self._form).write(frame[:SIZE])
        return frame

    def _read_header(self, frame: Tensor) -> FrameHeader:
        header = FrameHeader.read(frame[:SIZE])
        header.check(self._task.tag, self._task.piece.numel, self._form)
        return header

    def _tag(self, phase: Phase, end: int) -> int:
        return wire_tag(self._task.tag, self._task.bucket, self._task.piece.index, phase, end)

    def _post(self, phase: Phase, edge: TreeEdge, nbytes: int, arrived: Callable[[Tensor, Delivery], None]) -> None:
        self._open += 1

        def received(frame: Tensor, delivery: Delivery) -> None:
            arrived(frame, delivery)
            self._transfer_ended()

        self._frame_io.post(edge.hop, self._tag(phase, edge.end), nbytes, received)

    def _send(self, phase: Phase, edge: TreeEdge, frame: Tensor, sent: Callable[[Delivery], None]) -> None:
        self._open += 1
        contract = self._up_layout.contract if phase is Phase.UP and edge.direct else RELIABLE

        def was_sent(delivery: Delivery) -> None:
            sent(delivery)
            self._transfer_ended()

        tag = self._tag(phase, edge.end)
        if not (
            edge.direct and self._side_routes is not None and self._side_routes.offer(edge.hop, tag, frame, was_sent)
        ):
            self._frame_io.send(edge.hop, tag, frame, contract, was_sent, order=self._order)

    def _relay(self, phase: Phase, end: int, hops: tuple[int, int], nbytes: int) -> None:
        """Receive a frame and forward it unchanged."""
        before, after = hops

        def forward(frame: Tensor, _: Delivery) -> None:
            self._forward(phase, TreeEdge(end, after), frame)

        self._post(phase, TreeEdge(end, before), nbytes, forward)

    def _forward(self, phase: Phase, edge: TreeEdge, frame: Tensor) -> None:
        self._open += 1

        def was_sent(_: Delivery) -> None:
            self._frame_io.release_buffer(frame)
            self._transfer_ended()

        self._frame_io.send(edge.hop, self._tag(phase, edge.end), frame, sent=was_sent, order=self._order)

    def _transfer_ended(self) -> None:
        self._open -= 1
        if not self._open:
            self._ended()
