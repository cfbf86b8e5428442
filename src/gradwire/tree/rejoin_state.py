"""Rejoin state: requests what this member missed and sends others what they missed: results of a step or a whole state.

In: what the membership protocol says is missing, requests of peers. Out: the results in this step's requests; or the
replica state of the others, and a step to which this member adds nothing. Runs on the executor's thread.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gradwire.plan.membership.control_messages import Fetch, StateOffer
from gradwire.plan.membership.member import Member
from gradwire.tree.control_channel import ControlChannel
from gradwire.tree.frame_header import result_tag
from gradwire.tree.request import BucketRequest
from gradwire.tree.state_transfer import StateReceiver, StateSender, TransferableState
from gradwire.tree.step_snapshot import StepSnapshot

StepDone = Callable[[int], None]


class RejoinState:
    """One member's side, as receiver and as sender."""

    def __init__(self, channel: ControlChannel, member: Member, snapshot: StepSnapshot) -> None:
        self._channel, self._frame_io = channel, channel.frame_io
        self._member, self._membership, self._snapshot = member, member.membership, snapshot
        self._state: TransferableState | None = None
        # What this member has requested (epoch, holder, step), and the state requests of others.
        self._requested: tuple[int, int, int] | None = None
        self._receiver: StateReceiver | None = None
        self._state_requests: dict[int, Fetch] = {}
        channel.subscribe(Fetch, self._serve)
        channel.subscribe(StateOffer, self._receive_state)

    def set_state(self, state: TransferableState) -> None:
        """The replica state of this member: sent to members that rejoin, replaced if this one rejoins."""
        self._state = state

    # ---- as receiver ---------------------------------------------------------------------------------------------
    def request_missing(self, results_arrived: StepDone, state_loaded: StepDone) -> None:
        """Request what is missing, once; calls one of the two when it is here."""
        assert self._membership.missing is not None
        missing = (self._member.epoch, *self._membership.missing)
        if missing == self._requested:
            return
        if self._requested is not None:
            self._frame_io.drop_step_data()  # from a holder that was lost
        self._requested = missing
        epoch, holder, step = missing
        if self._membership.fresh:
            done = lambda header, body: self._load_state(state_loaded, header, body)  # noqa: E731
            self._receiver = StateReceiver(self._frame_io, holder, (epoch, step), done)
            self._channel.send(holder, Fetch(step, whole=True, epoch=epoch))
        else:
            self._request_results(holder, step, results_arrived)

    def _request_results(self, holder: int, step: int, results_arrived: StepDone) -> None:
        requests = self._snapshot.requests
        left = len(requests)

        def arrived(request: BucketRequest, frame: Tensor) -> None:
            nonlocal left
            request.gradient.copy_(frame.view(torch.float32))
            left -= 1
            if not left:
                self._member.caught_up(step)
                self._requested = None
                results_arrived(step)

        for request in requests:
            tag, size = result_tag(step, request.bucket.index), 4 * request.gradient.numel()
            self._frame_io.post(holder, tag, size, lambda frame, _, request=request: arrived(request, frame))  # type: ignore[misc]
        self._channel.send(holder, Fetch(step))

    def _receive_state(self, sender: int, offer: StateOffer) -> None:
        if self._receiver is not None and self._requested == (offer.epoch, sender, offer.step):
            self._receiver.begin(offer.header, offer.body)

    def _load_state(self, state_loaded: StepDone, header: bytes, body: Tensor) -> None:
        """Load it. The current step was begun with the old state, so it adds nothing to the sum."""
        assert self._state is not None
        assert self._requested is not None
        step = self._requested[2]
        self._state.load(header, body)
        self._snapshot.discard()
        self._member.caught_up(step)
        self._requested = self._receiver = None
        state_loaded(step)

    # ---- as sender -----------------------------------------------------------------------------------------------
    def _serve(self, peer: int, request: Fetch) -> None:
        """Send results at once; a state when this member has reached the step after which it is requested."""
        if request.whole:
            self._state_requests[peer] = request
            return
        for index, result in self._snapshot.results(request.step).items():
            self._frame_io.send(peer, result_tag(request.step, index), result.clone().view(torch.uint8))

    def send_states(self) -> list[tuple[int, int]]:
        """Send the requested states; returns (peer, bytes) of each. Called during a step: the state does not change
        then, and the step cannot end without the member that receives it."""
        member, here = self._member, (self._member.epoch, self._member.done)
        self._state_requests = {peer: one for peer, one in self._state_requests.items() if one.epoch >= member.epoch}
        if self._state is None:
            return []
        sent = []
        for peer in [peer for peer, one in self._state_requests.items() if (one.epoch, one.step) == here]:
            del self._state_requests[peer]
            sender = StateSender(self._frame_io, peer, here, self._state.save(self._snapshot.requests[0].bucket.step))
            self._channel.send(peer, StateOffer(*here, sender.header, sender.body))
            sender.begin()
            sent.append((peer, sender.body))
        return sent
