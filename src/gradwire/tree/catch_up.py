"""Bequest: what a member missed, from one that has it: a step's results, or everything that makes up a replica.

In: what the policy says is missing, requests of others. Out: the step's parcels with the results in them, or a replica
that is what the others' are and a step that contributes nothing. Runs on the walker's thread.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradwire.plan.membership.control_messages import Fetch, Handing, News
from gradwire.plan.membership.member import Member
from gradwire.plan.membership.messages import Message
from gradwire.tree.frame_header import result_tag
from gradwire.tree.frame_io import FrameIO
from gradwire.tree.request import BucketRequest
from gradwire.tree.state_transfer import StateReceiver, StateSender, TransferableState
from gradwire.tree.step_snapshot import StepSnapshot


class CatchUp:
    """One member's side of it, as heir and as holder."""

    def __init__(self, port: FrameIO, member: Member, keep: StepSnapshot) -> None:
        self._port, self._member, self._keep = port, member, keep
        self.estate: TransferableState | None = None
        self.tell: Callable[[int, Message | News], None] = lambda peer, news: None
        # What this member is being handed (epoch, holder, step), and who has asked to be handed everything.
        self._fetching: tuple[int, int, int] | None = None
        self._taker: StateReceiver | None = None
        self._askers: dict[int, Fetch] = {}

    def catch_up(self, ended: Callable[[int], None], became: Callable[[int], None]) -> None:
        """Ask for what is missing: `ended(step)` when its results are here, `became(step)` after everything."""
        assert self._member.behind is not None
        missing = (self._member.epoch, *self._member.behind)
        if missing == self._fetching:
            return
        if self._fetching is not None:
            self._port.forget_data()  # from a holder that is gone
        self._fetching = missing
        epoch, holder, step = missing
        if self._member.fresh:
            self._taker = StateReceiver(self._port, holder, (epoch, step), lambda *state: self._become(became, *state))
            self.tell(holder, Fetch(step, whole=True, epoch=epoch))
        else:
            self._fetch(holder, step, ended)

    def _fetch(self, holder: int, step: int, ended: Callable[[int], None]) -> None:
        parcels = self._keep.parcels
        left = len(parcels)

        def arrived(parcel: BucketRequest, frame: Tensor) -> None:
            nonlocal left
            parcel.gradient.copy_(frame.view(torch.float32))
            left -= 1
            if not left:
                self._member.caught_up(step)
                self._fetching = None
                ended(step)

        for parcel in parcels:
            tag, size = result_tag(step, parcel.bucket.index), 4 * parcel.gradient.numel()
            self._port.post(holder, tag, size, lambda frame, _, parcel=parcel: arrived(parcel, frame))  # type: ignore[misc]
        self.tell(holder, Fetch(step))

    def expect(self, sender: int, news: Handing) -> None:
        """The holder has begun to hand everything over."""
        if self._taker is not None and self._fetching == (news.epoch, sender, news.step):
            self._taker.begin(news.header, news.body)

    def _become(self, became: Callable[[int], None], header: bytes, body: Tensor) -> None:
        """What the others are. The step under way here was begun as something else: it adds nothing to theirs."""
        assert self.estate is not None
        assert self._fetching is not None
        step = self._fetching[2]
        self.estate.take(header, body)
        self._keep.blank()
        self._member.caught_up(step)
        self._fetching = self._taker = None
        became(step)

    # ---- as holder -----------------------------------------------------------------------------------------------
    def serve(self, peer: int, request: Fetch) -> None:
        """Hand a member what it missed: results at once, everything when this member is where that one is to begin."""
        if request.whole:
            self._askers[peer] = request
            return
        for index, result in self._keep.results(request.step).items():
            self._port.send(peer, result_tag(request.step, index), result.clone().view(torch.uint8))

    def hand_out(self) -> list[tuple[int, int]]:
        """While a step is under way nothing of the replica changes, and the newcomer is needed to end it. To whom, and
        how many bytes."""
        member, here = self._member, (self._member.epoch, self._member.done)
        self._askers = {peer: asked for peer, asked in self._askers.items() if asked.epoch >= member.epoch}
        if self.estate is None:
            return []
        handed = []
        for peer in [peer for peer, asked in self._askers.items() if (asked.epoch, asked.step) == here]:
            del self._askers[peer]
            giver = StateSender(self._port, peer, here, self.estate.give(self._keep.parcels[0].bucket.step))
            self.tell(peer, Handing(*here, giver.header, giver.body))
            giver.begin()
            handed.append((peer, giver.body))
        return handed
