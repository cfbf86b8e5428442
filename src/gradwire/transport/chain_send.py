"""Chain send: sends tensors from one rank to several others, along a chain of them.

In: a process group with direct sends of CPU tensors, its ranks in the order of the chain, tensors of equal shapes on
all of them. Out: the first rank's bytes in every other rank's tensors, of any type, device and memory layout.

The tensors' bytes are one stream, cut into chunks. Each rank sends a chunk on as soon as it has it, so every uplink
carries the stream once, and each rank has it one chunk later than the one before. A broadcast tree would load the
uplink of its root once per child.

    1. the first rank sends every chunk to the second
    2. a rank in the middle receives into a ring of buffers, writes its tensors, sends the same buffer on, and uses it
       again when it is sent
    3. the last rank tells the first that everything has arrived
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire.errors import LinkError

# A chunk is this share of the stream, within limits: smaller ones cost more calls, larger ones more time per rank.
_CHUNKS: Final = 256
_LEAST: Final = 32 * 1024
_MOST: Final = 4 * 1024 * 1024
# Buffers of a ring: gloo sends a chunk when its receive is posted, so half as many chunks are sent per round trip.
_RING: Final = 16
# Backends take 30 bits at least; these are far from the small numbers that programs use.
_TAG: Final = 0x37770000
_DONE: Final = _TAG - 1


def as_bytes(tensor: Tensor) -> Tensor:
    """A tensor's bytes in the order of its elements: its own memory where it is contiguous in host memory, otherwise a
    copy."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


class ByteStream:
    """The bytes of several tensors, one after another, in the order of their elements."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = [tensor.detach() for tensor in tensors]
        self._parts = [as_bytes(tensor) for tensor in self._tensors]
        self.nbytes = sum(part.numel() for part in self._parts)

    def read(self, start: int, out: Tensor) -> None:
        """Copy bytes from `start` on into `out`."""
        for part, chunk in self._overlaps(start, out):
            chunk.copy_(part)

    def write(self, start: int, chunk: Tensor) -> None:
        """Copy `chunk` to the bytes from `start` on."""
        for part, received in self._overlaps(start, chunk):
            part.copy_(received)

    def finish(self) -> None:
        """After the last `write`: set the tensors whose bytes were a copy."""
        for tensor, part in zip(self._tensors, self._parts, strict=True):
            if tensor.numel() and tensor.data_ptr() != part.data_ptr():
                tensor.copy_(part.view(tensor.dtype).view(tensor.shape))

    def _overlaps(self, start: int, chunk: Tensor) -> list[tuple[Tensor, Tensor]]:
        found, begin, end = [], 0, start + chunk.numel()
        for part in self._parts:
            low, high = max(begin, start), min(begin + part.numel(), end)
            if low < high:
                found.append((part[low - begin : high - begin], chunk[low - start : high - start]))
            begin += part.numel()
        return found


def chunk_bytes(total: int) -> int:
    """The size of a chunk for a stream of `total` bytes."""
    return min(_MOST, max(_LEAST, -(-total // _CHUNKS)))


def send_along_chain(
    group: dist.ProcessGroup, chain: Sequence[int], tensors: Sequence[Tensor], on_sent: Callable[[int], None]
) -> None:
    """Every rank of `chain` calls this; `on_sent` gets the number of bytes that this rank has sent or received so far.
    LinkError where a rank of the chain is lost."""
    stream = ByteStream(tensors)
    try:
        with torch.no_grad():
            link = _ChainLink(group, chain, stream, on_sent)
            if link.first:
                link.send_all()
            else:
                link.receive_all()
                stream.finish()
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise LinkError(
            f"weights: their transfer from rank {chain[0]} did not complete: {reason}; a rank stopped or cannot be "
            "reached"
        ) from error


class _ChainLink:
    """One rank's place in the chain: its neighbours, its ring of buffers and what is on the way."""

    def __init__(
        self, group: dist.ProcessGroup, chain: Sequence[int], stream: ByteStream, on_sent: Callable[[int], None]
    ) -> None:
        place = list(chain).index(group.rank())
        self.first, self._last = place == 0, place == len(chain) - 1
        self._group, self._stream, self._on_sent = group, stream, on_sent
        self._before, self._after, self._ends = chain[place - 1], chain[(place + 1) % len(chain)], (chain[0], chain[-1])
        size = chunk_bytes(stream.nbytes)
        self._starts = range(0, stream.nbytes, size)
        self._ring = torch.empty((min(_RING, max(1, len(self._starts))), size), dtype=torch.uint8)
        self._sends: dict[int, dist.Work] = {}
        self._receives: dict[int, dist.Work] = {}

    def send_all(self) -> None:  # 1
        done = self._group.recv([torch.empty(1, dtype=torch.uint8)], self._ends[1], _DONE)
        for number, start in enumerate(self._starts):
            self._await_sent(number - len(self._ring))
            self._stream.read(start, self._buffer(number))
            self._send(number)
        for number in sorted(self._sends):
            self._await_sent(number)
        done.wait()

    def receive_all(self) -> None:  # 2
        lag = 0 if self._last else len(self._ring) // 2
        for number in range(min(len(self._ring), len(self._starts))):
            self._post(number)
        for number, start in enumerate(self._starts):
            self._receives.pop(number).wait()
            self._stream.write(start, self._buffer(number))
            if self._last:
                self._on_sent(self._end(number))
            else:
                self._send(number)
                self._await_sent(number - lag)
            if number >= lag:
                self._post(number - lag + len(self._ring))
        for number in sorted(self._sends):
            self._await_sent(number)
        if self._last:
            self._group.send([torch.zeros(1, dtype=torch.uint8)], self._ends[0], _DONE).wait()  # 3

    def _buffer(self, number: int) -> Tensor:
        return self._ring[number % len(self._ring), : self._end(number) - self._starts[number]]

    def _end(self, number: int) -> int:
        return min(self._starts[number] + self._starts.step, self._stream.nbytes)

    def _post(self, number: int) -> None:
        if number < len(self._starts):
            self._receives[number] = self._group.recv([self._buffer(number)], self._before, _tag(number))

    def _send(self, number: int) -> None:
        self._sends[number] = self._group.send([self._buffer(number)], self._after, _tag(number))

    def _await_sent(self, number: int) -> None:
        if number in self._sends:
            self._sends.pop(number).wait()
            self._on_sent(self._end(number))


def _tag(number: int) -> int:
    """Only chunks that are on the way at the same time need different tags."""
    return _TAG + number % (1 << 15)
