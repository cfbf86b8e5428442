"""Point to point: sends and receives with tags, from one rank or from any.

The n-th send with a tag matches the n-th receive with that tag between the same two ranks. A receive that times out
leaves its receive of the opening message posted; the next one continues with it. A receive from any source posts one
for every peer's opening message and takes the first that arrives.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Final

from torch import Tensor

from gradwire.backend import tags
from gradwire.backend.buffers import INLINE, MessageBuffer
from gradwire.backend.call import HEADER, Call, unpack
from gradwire.backend.callbacks import Callbacks
from gradwire.backend.errors import CollectiveError
from gradwire.backend.peer_group import PeerGroup, cancel_transfer
from gradwire.backend.work import CollectiveWork
from gradwire.errors import LinkError
from gradwire.transport.wires.base import Transfer

_SLICE: Final = 0.1
_ANY_SLICE: Final = 0.0005


class PostedOpening:
    """A posted receive for one peer's next opening message with a tag."""

    def __init__(self, group: PeerGroup, peer: int, tag: int, number: int) -> None:
        self.peer, self.tag, self.number = peer, tag, number
        self.buffer: MessageBuffer = group.buffers.take()
        self.transfer = group.post(peer, self.buffer.memory, tags.opening(group.number, tag, number))


class PointToPoint:
    """One group's sends and receives."""

    def __init__(self, group: PeerGroup, timeout: float, callbacks: Callbacks) -> None:
        self._group = group
        self.timeout = timeout
        self.callbacks = callbacks
        self._lock = threading.Lock()
        self._sent: dict[tuple[int, int], int] = defaultdict(int)
        self._received: dict[tuple[int, int], int] = defaultdict(int)
        self._posts: dict[tuple[int, int], list[PostedOpening]] = defaultdict(list)

    def send(self, flat: Tensor, peer: int, tag: int) -> CollectiveWork:
        """Small tensors are copied before this returns; large ones must not be changed until the work is done."""
        group = self._group
        group.check_known()
        with self._lock:
            number = self._sent[peer, tag]
            self._sent[peer, tag] += 1
            group.reclaim()
            buffer = group.buffers.take()
        inside = flat.nbytes if flat.nbytes <= INLINE else 0
        buffer.head[:] = Call("send", flat.dtype, flat.numel()).pack(number, flat.nbytes)
        if inside:
            buffer.view(flat).copy_(flat)
        transfers = []
        try:
            opening = group.send(peer, buffer.filled(inside), tags.opening(group.number, tag, number))
            group.release_when_sent([opening], buffer)
            if not inside and flat.nbytes:
                transfers.append(group.send(peer, flat, tags.payload(group.number, tag, number)))
        except LinkError as error:
            raise CollectiveError(f"send to rank {peer}: {error}") from error
        return P2PWork(self, [flat], iter(transfers), self.timeout, f"send to rank {peer}")

    def receive(
        self, flat: Tensor, peer: int | None, tag: int, on_complete: Callable[[], None] = lambda: None
    ) -> CollectiveWork:
        self._group.check_known()
        source = "any rank" if peer is None else f"rank {peer}"
        work = P2PWork(self, [flat], iter(()), self.timeout, f"receive with tag {tag} from {source}", on_complete)
        if peer is None:
            work.steps = self._any(flat, tag, work)
        else:
            work.steps = self._from(self._take(peer, tag), flat, work)
        work.prepare()
        return work

    def close(self) -> None:
        for posts in self._posts.values():
            for post in posts:
                cancel_transfer(post.transfer)
        self._posts.clear()

    def check(self) -> None:
        self._group.check()

    def _take(self, peer: int, tag: int) -> PostedOpening:
        with self._lock:
            waiting = self._posts[peer, tag]
            return waiting.pop(0) if waiting else self._new(peer, tag)

    def _new(self, peer: int, tag: int) -> PostedOpening:
        number = self._received[peer, tag]
        self._received[peer, tag] += 1
        return PostedOpening(self._group, peer, tag, number)

    def _keep(self, post: PostedOpening) -> None:
        with self._lock:
            self._posts[post.peer, post.tag] = sorted([*self._posts[post.peer, post.tag], post], key=lambda p: p.number)

    def _from(self, post: PostedOpening, flat: Tensor, work: P2PWork) -> Iterator[Transfer]:
        """Yields what must arrive; a large payload is posted before its opening has arrived."""
        payload = tags.payload(self._group.number, post.tag, post.number)
        large = self._group.post(post.peer, flat, payload) if flat.nbytes > INLINE else None
        read = False
        try:
            yield post.transfer
            read = True
            self._read(post, flat)
            if large is None:
                if flat.nbytes:
                    flat.copy_(post.buffer.view(flat))
            else:
                yield large
                large = None
            work.source = post.peer
            with self._lock:
                self._group.buffers.give(post.buffer)
        finally:
            if large is not None:
                cancel_transfer(large)
            if not read:
                self._keep(post)

    def _any(self, flat: Tensor, tag: int, work: P2PWork) -> Iterator[Transfer]:
        """Polls all peers in turn; a peer that has left is skipped, unless all have."""
        gone: set[int] = set()
        while True:
            peers = [peer for peer in self._group.peers if peer not in gone] or self._group.peers
            with self._lock:
                posts = [self._first(peer, tag) for peer in peers]
                post = next((post for post in posts if post.transfer.done), None)
                if post is not None and (len(gone) == len(self._group.peers) or _complete(post.transfer)):
                    self._posts[post.peer, tag].remove(post)
                elif post is not None:
                    gone.add(post.peer)
                    continue
            if post is not None:
                work.wait_slice = _SLICE
                yield from self._from(post, flat, work)
                return
            work.wait_slice = _ANY_SLICE
            yield posts[0].transfer

    def _first(self, peer: int, tag: int) -> PostedOpening:
        if not self._posts[peer, tag]:
            self._posts[peer, tag].append(self._new(peer, tag))
        return self._posts[peer, tag][0]

    def _read(self, post: PostedOpening, flat: Tensor) -> None:
        delivery = post.transfer.wait(0)
        try:
            theirs, _, size = unpack(bytes(post.buffer.head))
        except ValueError as error:
            raise CollectiveError(f"rank {post.peer} sent no header: {error}") from error
        if theirs.dtype != flat.dtype or size != flat.nbytes or (size <= INLINE and delivery.size != HEADER + size):
            ours = f"{flat.numel()} elements of {flat.dtype}"
            raise CollectiveError(
                f"receive with tag {post.tag}: rank {post.peer} sent {theirs.count} elements of {theirs.dtype}, "
                f"rank {self._group.rank} receives {ours}"
            )


def _complete(transfer: Transfer) -> bool:
    """Whether a finished transfer delivered everything."""
    try:
        return transfer.wait(0).complete
    except LinkError:
        return False


class P2PWork(CollectiveWork):
    """A send or receive. The wire moves the data; the thread that waits or polls runs the steps in between."""

    def __init__(
        self, points: PointToPoint, outputs: list[Tensor], steps: Iterator[Transfer], timeout: float, what: str,
        on_complete: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        super().__init__(outputs, points.callbacks)
        self.steps = steps
        self.wait_slice = _SLICE
        self._points = points
        self._timeout = timeout
        self._what = what
        self._on_complete = on_complete
        self._awaited: Transfer | None = None
        self._stepping = threading.Lock()
        self._thread: threading.Thread | None = None

    def prepare(self) -> None:
        """Post the first receives."""
        with self._stepping:
            self._advance()

    def _progress(self, timeout: timedelta) -> None:
        seconds = timeout.total_seconds() or self._timeout
        deadline = time.monotonic() + seconds
        while not self._done.is_set():
            with self._stepping:
                if self._done.is_set():
                    return
                self._once(max(0.0, min(self.wait_slice, deadline - time.monotonic())))
                if not self._done.is_set() and time.monotonic() >= deadline:
                    self._end(CollectiveError(f"{self._what}: did not complete within {seconds:g} s"))

    def _poll(self) -> None:
        if not self._done.is_set() and self._stepping.acquire(blocking=False):
            try:
                self._once(0.0)
            finally:
                self._stepping.release()

    def _run_in_background(self) -> None:
        if not self._done.is_set() and self._thread is None:
            self._thread = threading.Thread(
                target=self._progress, args=(timedelta(0),), name="gradwire-receive", daemon=True
            )
            self._thread.start()

    def _once(self, seconds: float) -> None:
        if self._awaited is None:
            return self._advance()
        try:
            self._awaited.wait(seconds)
        except TimeoutError:
            try:
                self._points.check()
            except CollectiveError as error:
                return self._end(error)
            if self.wait_slice == _SLICE:
                return None
        except LinkError as error:
            if self.wait_slice == _SLICE:
                return self._end(CollectiveError(f"{self._what}: {error}"))
        return self._advance()

    def _advance(self) -> None:
        try:
            self._awaited = next(self.steps)
        except StopIteration:
            self._on_complete()
            self.finish()
        except LinkError as error:
            self._end(CollectiveError(f"{self._what}: {error}") if not isinstance(error, CollectiveError) else error)

    def _end(self, error: CollectiveError) -> None:
        """Call this with `_stepping` held: a generator that another thread runs cannot be closed."""
        close = getattr(self.steps, "close", None)
        if close is not None:
            close()
        self.finish(error)
