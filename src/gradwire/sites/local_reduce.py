"""Site: ranks that are near each other sum among themselves first; one leader per site speaks for them across.

In: parcels in the order of buckets, the same on all ranks of the site. Each goes through three stations: sum inside the
site (by the existing backend, or gloo where that takes no CPU tensors), the trees between sites (leaders only), and
back from the leader to its site. Who is where says a file (`planning.sites`), read by rank 0 for all, or each rank's
GRADWIRE_SITE. The leader is the lowest rank. Two groups and two threads of their own keep the order of collectives: one
for sums, one for results, so that several buckets are under way at once. A site that was cut off and is taken back is
handed the others' state through its leader: before the results of that step, everybody in the site gets it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.errors import GradwireError, LinkError
from gradwire.level import Level
from gradwire.sites.step_resume import PendingResult, StepProgress, StepResume
from gradwire.transport.lanes.collectives import explain
from gradwire.tree.request import BucketRequest
from gradwire.tree.state_transfer import TransferableState

# Room for a level's text; the longest that adds up is shorter than 40 characters.
LEVEL_BYTES = 64
Across = Callable[[BucketRequest], None]


class SiteError(LinkError):
    """A collective inside the site failed: somebody here is gone."""


class SharedReplicaState:
    """The estate of a site's leader: what it is handed, its neighbours are handed too."""

    def __init__(self, own: TransferableState) -> None:
        self._own = own
        self._came: list[Tensor] = []

    def give(self, step: int) -> tuple[bytes, Sequence[Tensor]]:
        return self._own.give(step)

    def take(self, header: bytes, body: Tensor) -> None:
        self._own.take(header, body)
        self._came = [torch.frombuffer(bytearray(header), dtype=torch.uint8), body]

    def fetch(self) -> list[Tensor]:
        """What was handed to the leader since the last time: a description and its body, or nothing."""
        came, self._came = self._came, []
        return came

    def share(self, broadcast: Callable[[Tensor], None], leads: bool) -> None:
        """All ranks of the site call this once a step: two numbers, and what came if there is any."""
        came = self.fetch()
        sizes = torch.tensor([part.numel() for part in came] or [0, 0])
        broadcast(sizes)
        if int(sizes[0]):
            header, body = came or [torch.empty(int(size), dtype=torch.uint8) for size in sizes]
            broadcast(header)
            broadcast(body)
            if not leads:
                self._own.take(bytes(header.numpy()), body)


class SiteLevel:
    """The level of the plan in force, where plans decide it: the leader tells its site once a step."""

    def __init__(self, own: Callable[[], str]) -> None:
        self._own = own
        self.told: Level | None = None

    def share(self, broadcast: Callable[[Tensor], None], leads: bool) -> None:
        text = self._own().encode()[:LEVEL_BYTES] if leads else b""
        padded = torch.frombuffer(bytearray(text.ljust(LEVEL_BYTES, b"\0")), dtype=torch.uint8)
        broadcast(padded)
        self.told = Level.parse(bytes(padded.numpy()).rstrip(b"\0").decode(errors="replace"))


class LocalReducer:
    """One rank's part. `across` is the leader's way to the other sites, None on everybody else.

    With `keep` a step can be resumed by the site that follows this one when a follower dies; it costs a copy of the
    gradient. `resume` is the rest of a step that a site before this one began.
    """

    def __init__(
        self,
        groups: Sequence[dist.ProcessGroup],
        across: Across | None,
        *,
        keep: bool = False,
        resume: StepResume | None = None,
        inheritance: SharedReplicaState | None = None,
    ) -> None:
        self._groups: list[dist.ProcessGroup] = list(groups)
        self._across = across
        self.size = groups[0].size()
        self.attempts = resume.attempts if resume is not None else StepProgress()
        self.inheritance = inheritance
        # On all ranks of the site, or on none; before the first step.
        self.level: SiteLevel | None = None
        self._keep = keep
        self._sum_resume = self._share_resume = resume
        self._sum_place = self._share_place = 0
        self._abandoned = self._broken = False
        # Residuals, by their place in memory, that nothing waits in any more.
        self._emptied: set[int] = set()
        self._sums: queue.SimpleQueue[BucketRequest | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[BucketRequest, PendingResult] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run_sums, name="gradwire-site-sum", daemon=True),
            threading.Thread(target=self._run_results, name="gradwire-site-share", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def leads(self) -> bool:
        return self._across is not None

    def resumed(self, groups: Sequence[dist.ProcessGroup], resume: StepResume) -> LocalReducer:
        """The site without a follower that died; this one was abandoned."""
        site = LocalReducer(groups, self._across, keep=self._keep, resume=resume, inheritance=self.inheritance)
        site.level = self.level
        return site

    def submit(self, parcel: BucketRequest) -> None:
        self._sums.put(parcel)

    def hand_over(self, estate: TransferableState) -> TransferableState:
        """Before the first step, on all ranks of the site: what the leader is to hand on; what its walker is to use."""
        self.inheritance = SharedReplicaState(estate)
        return self.inheritance

    def abandon(self) -> None:
        """Begin nothing more here: another site has the parcels, and their gradients, by now. Connections are closed,
        so that whoever still waits in an operation with this rank notices."""
        self._abandoned = True
        self._sums.put(None)
        while self._groups:
            with suppress(ValueError, AssertionError, RuntimeError):  # one that torch does not know
                dist.destroy_process_group(self._groups.pop())

    def settle(self, timeout: float) -> None:
        """After `abandon`: wait until nothing here writes to a gradient any more. A leader may still wait for what is
        between the sites; its results are the next site's to share."""
        deadline = time.monotonic() + timeout
        for thread in self._threads[:1] if self.leads else self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                raise LinkError(f"an operation inside the site did not end within {timeout:g} s")

    def close(self, timeout: float = 10.0) -> None:
        self._sums.put(None)
        for thread in self._threads:
            thread.join(timeout)

    def _run_sums(self) -> None:
        """Sum each bucket inside the site; the leader sends it across, where it may overtake others."""
        while (parcel := self._sums.get()) is not None:
            self._results.put((parcel, self._sum(parcel, self._sum_place)))
            self._sum_place = 0 if parcel.bucket.is_last else self._sum_place + 1
            if parcel.bucket.is_last:
                self._sum_resume = None
        self._results.put(None)

    def resend(self) -> None:
        """Something may wait again on ranks that lead no site; between steps."""
        self._emptied.clear()

    def _sum(self, parcel: BucketRequest, place: int) -> PendingResult:
        if self._abandoned:
            return _came(SiteError("this site lost a rank"))
        resume, attempts = self._sum_resume, self.attempts
        if resume is not None and place < resume.summed:  # the leader has it
            if self.leads:
                return attempts.crossed[place]
            return _came(None)
        if resume is not None:
            resume.prepare(place, parcel.gradient)
        elif not place:
            attempts.clear()
        if resume is None or not resume.silent:
            self._send_what_waited(parcel)
        if self._keep:
            attempts.save(place, parcel.gradient)
        error = self._collective(lambda: self._groups[0].allreduce([parcel.gradient]).wait())
        if error is not None:
            return _came(error)
        crossed = PendingResult() if self._across else _came(None)
        attempts.summed, attempts.crossed = place + 1, [*attempts.crossed[:place], crossed]
        if self._across is not None:
            weight = self.size if resume is None else resume.weight
            self._across(replace(parcel, done=crossed.put, weight=weight))
        return crossed

    def _send_what_waited(self, parcel: BucketRequest) -> None:
        """Only the leader's residual crosses. What waits elsewhere, from a job that had other sites or none, goes with
        the first sum; nothing comes after it."""
        if not self.leads and parcel.residual.data_ptr() not in self._emptied:
            self._emptied.add(parcel.residual.data_ptr())
            parcel.gradient.add_(parcel.residual)
            parcel.residual.zero_()

    def _run_results(self) -> None:
        """In the order of buckets: wait until the leader has the mean, then everybody gets it."""
        while (item := self._results.get()) is not None:
            parcel, crossed = item
            error = crossed.wait()
            if error is None:
                error = self._collective(lambda p=parcel: self._share(p, self._share_place))  # type: ignore[misc]
            self._share_place = 0 if parcel.bucket.is_last else self._share_place + 1
            if parcel.bucket.is_last:
                self._share_resume = None
            parcel.done(error)

    def _share(self, parcel: BucketRequest, place: int) -> None:
        resume, group = self._share_resume, self._groups[1]
        if resume is not None and resume.first is not None:
            self._share_rest(resume, group, parcel, place)
            return
        if not place and self.inheritance is not None:
            self.inheritance.share(self._broadcast, self.leads)
        if not place and self.level is not None:
            self.level.share(self._broadcast, self.leads)
        self._broadcast(parcel.gradient)

    def _share_rest(self, resume: StepResume, group: dist.ProcessGroup, parcel: BucketRequest, place: int) -> None:
        own = self.inheritance
        if self.leads:
            if not place:
                resume.send_state(group, own.fetch() if own else (), own, parcel.bucket.step)
            resume.send(group, place, parcel.gradient)
        else:
            if not place:
                resume.receive_state(group, own)
            resume.receive(group, place, parcel.gradient)

    def _broadcast(self, tensor: Tensor) -> None:
        """From the leader, the first of the group."""
        self._groups[1].broadcast(tensor, 0).wait()

    def _collective(self, run: Callable[[], object]) -> BaseException | None:
        if self._abandoned or self._broken:
            return SiteError("this site lost a rank and goes on without it")
        try:
            run()
        except GradwireError as error:
            return error
        except (RuntimeError, IndexError) as error:
            # Which buckets were summed must be the same however often this is asked: nothing is tried after a failure.
            self._broken = True
            return SiteError(explain(RuntimeError(str(error)), "inside the site: the collective"))
        return None


def _came(error: BaseException | None) -> PendingResult:
    crossed = PendingResult()
    crossed.put(error)
    return crossed
