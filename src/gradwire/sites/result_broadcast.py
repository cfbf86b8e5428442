"""ResultBroadcast: sends the leader's results to all ranks of its site, in the order of buckets.

Before the first result of a step all ranks also receive, where that is used, the replica state that the leader received
in this step (its site was disconnected and rejoins) and the level of the plan in force.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.level import Level
from gradwire.sites.local_sum import StepBucket
from gradwire.sites.site_groups import SiteGroups
from gradwire.sites.step_resume import StepResume
from gradwire.tree.state_transfer import TransferableState

# A level is sent as text of this length; the longest that trees can sum is shorter than 40 characters.
LEVEL_BYTES: Final = 64
Broadcast = Callable[[Tensor], None]


class SharedReplicaState:
    """The replica state of a site: what the leader receives, its followers receive too."""

    def __init__(self, own: TransferableState) -> None:
        self._own = own
        self._received: list[Tensor] = []

    def save(self, step: int) -> tuple[bytes, Sequence[Tensor]]:
        return self._own.save(step)

    def load(self, header: bytes, body: Tensor) -> None:
        self._own.load(header, body)
        self._received = [torch.frombuffer(bytearray(header), dtype=torch.uint8), body]

    def fetch(self) -> list[Tensor]:
        """What the leader received since the last call: header and body, or nothing."""
        received, self._received = self._received, []
        return received

    def share(self, broadcast: Broadcast, leads: bool) -> None:
        """All ranks of the site call this once a step. Sends two sizes, then header and body if there are any."""
        received = self.fetch()
        sizes = torch.tensor([part.numel() for part in received] or [0, 0])
        broadcast(sizes)
        if int(sizes[0]):
            header, body = received or [torch.empty(int(size), dtype=torch.uint8) for size in sizes]
            broadcast(header)
            broadcast(body)
            if not leads:
                self._own.load(bytes(header.numpy()), body)


class SiteLevel:
    """The level of the plan in force, where plans decide it; the leader sends it to its site once a step."""

    def __init__(self, own: Callable[[], str]) -> None:
        self._own = own
        self.received: Level | None = None

    def share(self, broadcast: Broadcast, leads: bool) -> None:
        text = self._own().encode()[:LEVEL_BYTES] if leads else b""
        padded = torch.frombuffer(bytearray(text.ljust(LEVEL_BYTES, b"\0")), dtype=torch.uint8)
        broadcast(padded)
        self.received = Level.parse(bytes(padded.numpy()).rstrip(b"\0").decode(errors="replace"))


class ResultBroadcast:
    """One rank's part. `state` and `level` are set on all ranks of the site or on none, before the first step."""

    def __init__(self, groups: SiteGroups, leads: bool, state: SharedReplicaState | None) -> None:
        self._groups, self._leads = groups, leads
        self.state = state
        self.level: SiteLevel | None = None

    def run(self, bucket: StepBucket, summed: Future[Future[None]]) -> None:
        """Wait until the leader has the mean, then send it to the site."""
        summed.result().result()
        self._groups.share(partial(self._share, bucket))

    def _share(self, bucket: StepBucket, group: dist.ProcessGroup) -> None:
        resume, first = bucket.resume, bucket.number == 0
        if resume is not None and resume.first_missing is not None:
            self._share_missing(bucket, resume, group)
            return
        broadcast = partial(_broadcast, group)
        if first and self.state is not None:
            self.state.share(broadcast, self._leads)
        if first and self.level is not None:
            self.level.share(broadcast, self._leads)
        broadcast(bucket.request.gradient)

    def _share_missing(self, bucket: StepBucket, resume: StepResume, group: dist.ProcessGroup) -> None:
        """In a resumed step each follower gets only what it misses."""
        number, request, state = bucket.number, bucket.request, self.state
        if self._leads:
            if not number:
                resume.send_state(group, state.fetch() if state else (), state, request.bucket.step)
            resume.send(group, number, request.gradient)
        else:
            if not number:
                resume.receive_state(group, state)
            resume.receive(group, number, request.gradient)


def _broadcast(group: dist.ProcessGroup, tensor: Tensor) -> None:
    """From the leader, the first rank of the group."""
    group.broadcast(tensor, 0).wait()
