"""Point to point: sends and receives with tags, from one rank or from any.

The n-th send with a tag meets the n-th receive with that tag between the same two ranks. A receive that gives up leaves
its room for the opening message posted, so that the next one takes over where it stopped. A receive from any source
makes room for every peer's opening message and takes the first that arrives.
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
from gradwire.backend.peer_group import PeerGroup, withdraw
from gradwire.backend.work import CollectiveWork
from gradwire.errors import LinkError
from gradwire.transport.wires.base import Transfer

_SLICE: Final = 0.1
_ANY_SLICE: Final = 0.0005


class PostedOp:
    """The room made for one peer's next opening message with a tag."""

    def __init__(self, circle: PeerGroup, peer: int, tag: int, number: int) -> None:
        self.peer, self.tag, self.number = peer, tag, number
        self.box: MessageBuffer = circle.boxes.take()
        self.transfer = circle.post(peer, self.box.memory, tags.opening(circle.group, tag, number))


class PointToPoint:
    """One circle's sends and receives."""

    def __init__(self, circle: PeerGroup, timeout: float, callbacks: Callbacks) -> None:
        self._circle = circle
        self.timeout = timeout
        self.callbacks = callbacks
        self._lock = threading.Lock()
        self._sent: dict[tuple[int, int], int] = defaultdict(int)
        self._received: dict[tuple[int, int], int] = defaultdict(int)
        self._posts: dict[tuple[int, int], list[PostedOp]] = defaultdict(list)

    def send(self, flat: Tensor, peer: int, tag: int) -> CollectiveWork:
        """Small tensors are copied and on their way when this returns; large ones are left alone until waited for."""
        circle = self._circle
        circle.check_quickly()
        with self._lock:
            number = self._sent[peer, tag]
            self._sent[peer, tag] += 1
            circle.reap()
            box = circle.boxes.take()
        inside = flat.nbytes if flat.nbytes <= INLINE else 0
        box.head[:] = Call("send", flat.dtype, flat.numel()).pack(number, flat.nbytes)
        if inside:
            box.view(flat).copy_(flat)
        transfers = []
        try:
            opening = circle.send(peer, box.filled(inside), tags.opening(circle.group, tag, number))
            circle.trail([opening], box)
            if not inside and flat.nbytes:
                transfers.append(circle.send(peer, flat, tags.payload(circle.group, tag, number)))
        except LinkError as error:
            raise CollectiveError(f"send to rank {peer}: {error}") from error
        return P2PWork(self, [flat], iter(transfers), self.timeout, f"send to rank {peer}")

    def receive(
        self, flat: Tensor, peer: int | None, tag: int, settle: Callable[[], None] = lambda: None
    ) -> CollectiveWork:
        self._circle.check_quickly()
        source = "any rank" if peer is None else f"rank {peer}"
        work = P2PWork(self, [flat], iter(()), self.timeout, f"receive with tag {tag} from {source}", settle)
        if peer is None:
            work.steps = self._any(flat, tag, work)
        else:
            work.steps = self._from(self._take(peer, tag), flat, work)
        work.prepare()
        return work

    def close(self) -> None:
        for posts in self._posts.values():
            for post in posts:
                withdraw(post.transfer)
        self._posts.clear()

    def check(self) -> None:
        self._circle.check()

    def rank_of(self, transfer: Transfer) -> int:
        return self._circle.members.index(transfer.peer)

    def _take(self, peer: int, tag: int) -> PostedOp:
        with self._lock:
            waiting = self._posts[peer, tag]
            return waiting.pop(0) if waiting else self._new(peer, tag)

    def _new(self, peer: int, tag: int) -> PostedOp:
        number = self._received[peer, tag]
        self._received[peer, tag] += 1
        return PostedOp(self._circle, peer, tag, number)

    def _put_back(self, post: PostedOp) -> None:
        with self._lock:
            self._posts[post.peer, post.tag] = sorted([*self._posts[post.peer, post.tag], post], key=lambda p: p.number)

    def _from(self, post: PostedOp, flat: Tensor, work: P2PWork) -> Iterator[Transfer]:
        """Yields what must arrive; large payloads are posted before their opening is there."""
        group = self._circle.group
        large = (
            self._circle.post(post.peer, flat, tags.payload(group, post.tag, post.number))
            if flat.nbytes > INLINE
            else None
        )
        read = False
        try:
            yield post.transfer
            read = True
            self._read(post, flat)
            if large is None:
                if flat.nbytes:
                    flat.copy_(post.box.view(flat))
            else:
                yield large
                large = None
            work.source = post.peer
            with self._lock:
                self._circle.boxes.give(post.box)
        finally:
            if large is not None:
                withdraw(large)
            if not read:
                self._put_back(post)

    def _any(self, flat: Tensor, tag: int, work: P2PWork) -> Iterator[Transfer]:
        """Looks at all peers in turn; one that has left is looked at no more, unless nobody is left."""
        gone: set[int] = set()
        while True:
            peers = [peer for peer in self._circle.peers if peer not in gone] or self._circle.peers
            with self._lock:
                posts = [self._first(peer, tag) for peer in peers]
                post = next((post for post in posts if post.transfer.done), None)
                if post is not None and (len(gone) == len(self._circle.peers) or _whole(post.transfer)):
                    self._posts[post.peer, tag].remove(post)
                elif post is not None:
                    gone.add(post.peer)
                    continue
            if post is not None:
                work.patience = _SLICE
                yield from self._from(post, flat, work)
                return
            work.patience = _ANY_SLICE
            yield posts[0].transfer

    def _first(self, peer: int, tag: int) -> PostedOp:
        if not self._posts[peer, tag]:
            self._posts[peer, tag].append(self._new(peer, tag))
        return self._posts[peer, tag][0]

    def _read(self, post: PostedOp, flat: Tensor) -> None:
        delivery = post.transfer.wait(0)
        try:
            theirs, _, size = unpack(bytes(post.box.head))
        except ValueError as error:
            raise CollectiveError(f"rank {post.peer} sent something that is no message: {error}") from error
        if theirs.dtype != flat.dtype or size != flat.nbytes or (size <= INLINE and delivery.size != HEADER + size):
            ours = f"{flat.numel()} elements of {flat.dtype}"
            raise CollectiveError(
                f"receive with tag {post.tag}: rank {post.peer} sent {theirs.count} elements of {theirs.dtype}, "
                f"rank {self._circle.rank} has room for {ours}"
            )


def _whole(transfer: Transfer) -> bool:
    """Whether a transfer that is done brought something."""
    try:
        return transfer.wait(0).complete
    except LinkError:
        return False


class P2PWork(CollectiveWork):
    """A send or receive. The wire moves the data by itself; whoever waits or asks takes the few steps in between."""

    def __init__(
        self, points: PointToPoint, outputs: list[Tensor], steps: Iterator[Transfer], timeout: float, what: str,
        settle: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        super().__init__(outputs, points.callbacks)
        self.steps = steps
        self.patience = _SLICE
        self._points = points
        self._timeout = timeout
        self._what = what
        self._settle = settle
        self._awaited: Transfer | None = None
        self._turn = threading.Lock()
        self._thread: threading.Thread | None = None

    def prepare(self) -> None:
        """Post what can be posted now."""
        with self._turn:
            self._advance()

    def _help(self, timeout: timedelta) -> None:
        seconds = timeout.total_seconds() or self._timeout
        deadline = time.monotonic() + seconds
        while not self._done.is_set():
            with self._turn:
                if self._done.is_set():
                    return
                self._once(max(0.0, min(self.patience, deadline - time.monotonic())))
            if not self._done.is_set() and time.monotonic() >= deadline:
                self._end(CollectiveError(f"{self._what}: nothing within {seconds:g} s"))

    def _poll(self) -> None:
        if not self._done.is_set() and self._turn.acquire(blocking=False):
            try:
                self._once(0.0)
            finally:
                self._turn.release()

    def _drive(self) -> None:
        if not self._done.is_set() and self._thread is None:
            self._thread = threading.Thread(
                target=self._help, args=(timedelta(0),), name="gradwire-receive", daemon=True
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
            if self.patience == _SLICE:
                return None
        except LinkError as error:
            if self.patience == _SLICE:
                return self._end(CollectiveError(f"{self._what}: {error}"))
        return self._advance()

    def _advance(self) -> None:
        try:
            self._awaited = next(self.steps)
        except StopIteration:
            self._settle()
            self.finish()
        except LinkError as error:
            self._end(CollectiveError(f"{self._what}: {error}") if not isinstance(error, CollectiveError) else error)

    def _end(self, error: CollectiveError) -> None:
        close = getattr(self.steps, "close", None)
        if close is not None:
            close()
        self.finish(error)
