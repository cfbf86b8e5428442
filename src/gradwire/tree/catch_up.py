"""Bequest: what a member missed, from one that has it: a step's results, or everything that makes up a replica.

In: what the policy says is missing, requests of others. Out: the step's parcels with the results in them, or a replica
that is what the others' are and a step that contributes nothing. Runs on the walker's thread.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradwire.plan.membership.control_messages import ControlMessage, Fetch, StateOffer
from gradwire.plan.membership.member import Member
from gradwire.plan.membership.messages import Message
from gradwire.tree.frame_header import result_tag
from gradwire.tree.frame_io import FrameIO
from gradwire.tree.request import BucketRequest
from gradwire.tree.state_transfer import StateReceiver, StateSender, TransferableState
from gradwire.tree.step_snapshot import StepSnapshot


class CatchUp:
    """One member's side of it, as heir and as holder."""

    def __init__(self, frame_io: FrameIO, member: Member, snapshot: StepSnapshot) -> None:
        self._frame_io, self._member, self._snapshot = frame_io, member, snapshot
        self.state: TransferableState | None = None
        self.send: Callable[[int, Message | ControlMessage], None] = lambda peer, message: None
        # What this member is being handed (epoch, holder, step), and who has asked to be handed everything.
        self._fetching: tuple[int, int, int] | None = None
        self._receiver: StateReceiver | None = None
        self._state_requests: dict[int, Fetch] = {}

    def catch_up(self, ended: Callable[[int], None], became: Callable[[int], None]) -> None:
        """Ask for what is missing: `ended(step)` when its results are here, `became(step)` after everything."""
        assert self._member.behind is not None
        missing = (self._member.epoch, *self._member.behind)
        if missing == self._fetching:
            return
        if self._fetching is not None:
            self._frame_io.drop_step_data()  # from a holder that is gone
        self._fetching = missing
        epoch, holder, step = missing
        if self._member.fresh:
            self._receiver = StateReceiver(
                self._frame_io, holder, (epoch, step), lambda *state: self._load_state(became, *state)
            )
            self.send(holder, Fetch(step, whole=True, epoch=epoch))
        else:
            self._fetch(holder, step, ended)

    def _fetch(self, holder: int, step: int, ended: Callable[[int], None]) -> None:
        requests = self._snapshot.requests
        left = len(requests)

        def arrived(request: BucketRequest, frame: Tensor) -> None:
            nonlocal left
            request.gradient.copy_(frame.view(torch.float32))
            left -= 1
            if not left:
                self._member.caught_up(step)
                self._fetching = None
                ended(step)

        for request in requests:
            tag, size = result_tag(step, request.bucket.index), 4 * request.gradient.numel()
            self._frame_io.post(holder, tag, size, lambda frame, _, request=request: arrived(request, frame))  # type: ignore[misc]
        self.send(holder, Fetch(step))

    def begin_state(self, sender: int, message: StateOffer) -> None:
        """The holder has begun to hand everything over."""
        if self._receiver is not None and self._fetching == (message.epoch, sender, message.step):
            self._receiver.begin(message.header, message.body)

    def _load_state(self, became: Callable[[int], None], header: bytes, body: Tensor) -> None:
        """What the others are. The step under way here was begun as something else: it adds nothing to theirs."""
        assert self.state is not None
        assert self._fetching is not None
        step = self._fetching[2]
        self.state.load(header, body)
        self._snapshot.discard()
        self._member.caught_up(step)
        self._fetching = self._receiver = None
        became(step)

    # ---- as holder -----------------------------------------------------------------------------------------------
    def serve_results(self, peer: int, request: Fetch) -> None:
        """Hand a member what it missed: results at once, everything when this member is where that one is to begin."""
        if request.whole:
            self._state_requests[peer] = request
            return
        for index, result in self._snapshot.results(request.step).items():
            self._frame_io.send(peer, result_tag(request.step, index), result.clone().view(torch.uint8))

    def serve_states(self) -> list[tuple[int, int]]:
        """While a step is under way nothing of the replica changes, and the newcomer is needed to end it. To whom, and
        how many bytes."""
        member, here = self._member, (self._member.epoch, self._member.done)
        self._state_requests = {
            peer: asked for peer, asked in self._state_requests.items() if asked.epoch >= member.epoch
        }
        if self.state is None:
            return []
        handed = []
        for peer in [peer for peer, asked in self._state_requests.items() if (asked.epoch, asked.step) == here]:
            del self._state_requests[peer]
            sender = StateSender(self._frame_io, peer, here, self.state.save(self._snapshot.requests[0].bucket.step))
            self.send(peer, StateOffer(*here, sender.header, sender.body))
            sender.begin()
            handed.append((peer, sender.body))
        return handed
