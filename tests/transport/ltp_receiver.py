"""A second implementation of LTP's receiver, written from docs/ltp.md: one peer of higher rank that only receives.

In: datagrams and the time. Out: datagrams, and the bytes of each transfer with what is missing. It uses no code of
gradwire, so that what the document leaves out fails here.
"""

from __future__ import annotations

import hmac
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tests.transport.ltp_crypto import JobKeys, PacketKey, hello_core, public_key, tag, x25519
from tests.transport.ltp_frames import (
    ACK,
    CHALLENGE,
    CLOSE,
    DATA,
    GRANT,
    HOLD,
    ONCE,
    OPEN,
    PADDING,
    POSTED,
    RESPONSE,
    SHUT,
    WEIGHTED,
    Frame,
    parse_frames,
    write_frame,
)  # fmt: skip

VERSION: Final = 4
HELLO, RETRY, ACCEPT, REFUSE, RESET, KNOCK, SEALED, VERSIONS = range(1, 9)
COMPLETE, THRESHOLD = 1, 2
WHOLE: Final = 1_000_000
RANGES_PER_PART: Final = 128
RESEND: Final = 0.2  # seconds until a control frame without an ACK is sent again


@dataclass(slots=True)
class Transfer:
    """One incoming transfer (section 8)."""

    open: Frame
    buffer: bytearray
    arrived: set[int] = field(default_factory=set)
    once_at: float | None = None
    closed: int = 0
    energy: float | None = None
    missing: list[tuple[int, int]] = field(default_factory=list)

    @property
    def size(self) -> int:
        return self.open.fields[2]

    @property
    def grain(self) -> int:
        return self.open.fields[3]

    @property
    def grains(self) -> int:
        return -(-self.size // self.grain)

    def write(self, first: int, data: bytes, share: int | None = None) -> None:
        if self.closed:
            return
        start = first * self.grain
        assert start + len(data) == self.size or (start + len(data) < self.size and len(data) % self.grain == 0)
        self.buffer[start : start + len(data)] = data
        grains = set(range(first, first + -(-len(data) // self.grain)))
        if share is not None:
            fresh = len(grains - self.arrived) / len(grains)
            self.energy = (self.energy or 0.0) + 2 ** (-share / 2048) * fresh
        self.arrived |= grains

    def reason_to_close(self, now: float) -> int:
        """Steps 1, 2 and 4 (by ONCE) of section 8; the deadlines of step 3 are not used here."""
        if len(self.arrived) == self.grains:
            return COMPLETE
        if any(grain not in self.arrived for first, count in self.open.ranges for grain in range(first, first + count)):
            return 0
        tolerance, rtprop = self.open.fields[5], self.open.fields[7] / 1e6
        waited = self.once_at is not None and rtprop > 0 and now >= self.once_at + rtprop / 8
        enough = self.received() * WHOLE >= tolerance * self.size
        if self.energy is not None:
            enough &= self.energy * WHOLE >= tolerance
        return THRESHOLD if waited and tolerance < WHOLE and enough else 0

    def received(self) -> int:
        last = self.size - (self.grains - 1) * self.grain
        return len(self.arrived) * self.grain - (self.grain - last if self.grains - 1 in self.arrived else 0)

    def close(self, reason: int) -> list[Frame]:
        """The parts of CLOSE. What is missing is zero."""
        self.closed = reason
        for grain in sorted(set(range(self.grains)) - self.arrived):
            if self.missing and sum(self.missing[-1]) == grain:
                self.missing[-1] = (self.missing[-1][0], self.missing[-1][1] + 1)
            else:
                self.missing.append((grain, 1))
            end = min(self.size, (grain + 1) * self.grain)
            self.buffer[grain * self.grain : end] = bytes(end - grain * self.grain)
        parts = [self.missing[at : at + RANGES_PER_PART] for at in range(0, len(self.missing), RANGES_PER_PART)] or [[]]
        return [
            Frame(CLOSE, (self.open.fields[0], reason, self.received(), part, len(parts), len(ranges)), b"", ranges)
            for part, ranges in enumerate(parts)
        ]


@dataclass(slots=True)
class Sent:
    """A packet of ours that wants an acknowledgement."""

    frames: list[Frame]
    at: float


class Receiver:
    """The responder of one connection."""

    def __init__(self, job_secret: bytes, rank: int, peer: int) -> None:
        self.keys, self.rank, self.peer = JobKeys(job_secret), rank, peer
        self.epoch, self.nonce = int.from_bytes(os.urandom(8)), os.urandom(32)
        self.connection = int.from_bytes(os.urandom(4)) | 1
        self.private, self.cookie_key = os.urandom(32), os.urandom(32)
        self.hello, self.accept = b"", b""
        self.remote, self.encrypt, self.confirmed, self.shut = 0, True, False, False
        self.sealing = self.opening = PacketKey(b"")
        self.generation, self.next_number = 0, 0
        self.seen: set[int] = set()
        self.ack_due, self.newest_at = False, 0.0
        self.control: list[Frame] = []
        self.sent: dict[int, Sent] = {}
        self.posted: dict[int, list[bytearray]] = {}
        self.transfers: dict[int, Transfer] = {}
        # For tests: a packet whose frames it returns True for is treated as lost.
        self.lose: Callable[[list[Frame]], bool] = lambda frames: False

    def post(self, buffer: bytearray, tag: int) -> None:
        """Receive the next transfer of the tag into `buffer`."""
        for transfer in self.transfers.values():
            if transfer.open.fields[1] == tag and not transfer.buffer:
                self._pair(transfer, buffer)
                return
        self.posted.setdefault(tag, []).append(buffer)
        self.control.append(Frame(POSTED, (tag, len(buffer))))

    def knock(self) -> bytes:
        return self._tagged(struct.pack(">BBIIQ", VERSION << 4 | KNOCK, 0, self.rank, self.peer, self.epoch))

    def handle(self, now: float, datagram: bytes) -> list[bytes]:
        """Answers of the handshake. What a connection sends is returned by `poll`."""
        if len(datagram) < 2 or datagram[0] >> 4 != VERSION:
            return []
        if datagram[0] & 15 == HELLO:
            return self._on_hello(now, datagram)
        if datagram[0] & 15 == SEALED and self.accept:
            self._on_sealed(now, datagram)
        return []

    def poll(self, now: float) -> list[bytes]:
        """Packets to send now."""
        if not self.confirmed or self.shut:
            return []
        for number in [number for number, sent in self.sent.items() if now - sent.at > RESEND]:
            self.control += self.sent.pop(number).frames
        for transfer in self.transfers.values():
            self._check(now, transfer)
        packets = []
        if self.ack_due:
            self.ack_due = False
            packets.append(self._seal([self._ack(now)]))
        while self.control:
            batch, self.control = self.control[:1], self.control[1:]
            self.sent[self.next_number] = Sent(batch, now)
            packets.append(self._seal(batch))
        return packets

    def _tagged(self, body: bytes, context: bytes = b"") -> bytes:
        return body + tag(self.keys.handshake_key, body, context)

    def _on_hello(self, now: float, hello: bytes) -> list[bytes]:
        if len(hello) != 1200 or not hmac.compare_digest(hello[-16:], tag(self.keys.handshake_key, hello[:-16])):
            return []
        flags, connection, rank, peer_rank = struct.unpack_from(">xBIII", hello)
        nonce, credit_end, cookie = hello[22:54], 60, hello[92:116]
        if flags > 1 or rank != self.peer or peer_rank != self.rank:
            return []
        expected = tag(self.cookie_key, hello[2:credit_end]) + bytes(8)
        if cookie != expected:
            body = struct.pack(">BBI", VERSION << 4 | RETRY, 0, connection) + expected
            return [self._tagged(body, nonce)]
        if not self.accept:
            self._start(hello, connection)
        return [self.accept] if hello_core(hello) == hello_core(self.hello) else []

    def _start(self, hello: bytes, connection: int) -> None:
        body = struct.pack(
            ">BBIIIQ", VERSION << 4 | ACCEPT, hello[1], connection, self.connection, self.rank, self.epoch
        )
        body += self.nonce + struct.pack(">IH", 0, 1472) + public_key(self.private)
        self.hello, self.accept = hello, self._tagged(body, hello_core(hello))
        secrets = self.keys.traffic(x25519(self.private, hello[60:92]), hello, self.accept)
        self.opening, self.sealing = PacketKey(secrets[0]), PacketKey(secrets[1])
        self.remote, self.encrypt = connection, bool(hello[1] & 1)
        self.private = b""

    def _on_sealed(self, now: float, packet: bytes) -> None:
        flags, connection, high, low = struct.unpack_from(">xBIHI", packet)
        number = high << 32 | low
        if connection != self.connection or number in self.seen or len(packet) <= 28:
            return
        ahead = (flags - self.generation) & 3
        key = self.opening.following() if ahead == 1 else self.opening
        try:
            frames = parse_frames(key.open(number, packet, encrypt=self.encrypt))
        except ValueError:
            return
        if ahead == 1:
            self.opening, self.generation = key, flags
        if self.lose(frames):
            return
        self.confirmed = True
        taken = [self._on_frame(now, frame) for frame in frames]
        if all(taken):
            self.newest_at = now if not self.seen or number > max(self.seen) else self.newest_at
            self.seen.add(number)
            self.ack_due |= any(frame.kind not in {ACK, PADDING} for frame in frames)

    def _on_frame(self, now: float, frame: Frame) -> bool:
        """Whether the packet may be acknowledged."""
        if frame.kind == ACK:
            base, _, _, *words = frame.fields
            for at, word in enumerate(words):
                for bit in range(64):
                    if word >> bit & 1:
                        self.sent.pop(base + 64 * at + bit, None)
        elif frame.kind == OPEN and frame.fields[0] not in self.transfers:
            self._on_open(frame)
        elif frame.kind in {DATA, WEIGHTED}:
            transfer = self.transfers.get(frame.fields[0])
            if transfer is None or not transfer.buffer:
                return False
            transfer.write(frame.fields[1], frame.data, *frame.fields[2:])
            self._check(now, transfer)
        elif frame.kind == ONCE and (transfer := self.transfers.get(frame.fields[0])) and transfer.once_at is None:
            transfer.once_at = now
        elif frame.kind == CHALLENGE:
            self.control.append(Frame(RESPONSE, frame.fields))
        elif frame.kind == SHUT:
            self.shut = True
        return True

    def _on_open(self, frame: Frame) -> None:
        number, tag = frame.fields[:2]
        self.transfers[number] = transfer = Transfer(frame, bytearray())
        if waiting := self.posted.get(tag):
            self._pair(transfer, waiting.pop(0))
        elif frame.fields[9]:  # data follows, but there is no buffer: this receiver gives no credit
            self.control.append(Frame(HOLD, (number,)))

    def _pair(self, transfer: Transfer, buffer: bytearray) -> None:
        transfer.buffer = buffer
        self.control.append(Frame(GRANT, (transfer.open.fields[0],)))

    def _check(self, now: float, transfer: Transfer) -> None:
        if transfer.buffer and not transfer.closed and (reason := transfer.reason_to_close(now)):
            self.control += transfer.close(reason)

    def _ack(self, now: float) -> Frame:
        newest = max(self.seen)
        first = max(0, newest // 64 - 63)
        words = [
            sum(1 << bit for bit in range(64) if 64 * at + bit in self.seen) for at in range(first, newest // 64 + 1)
        ]
        delay, stamp = int((now - self.newest_at) * 1e6), int(now * 1e6) & 0xFFFFFFFF
        return Frame(ACK, (64 * first, delay, stamp, *words))

    def _seal(self, frames: list[Frame]) -> bytes:
        number, self.next_number = self.next_number, self.next_number + 1
        header = struct.pack(">BBIHI", VERSION << 4 | SEALED, 0, self.remote, number >> 32, number & 0xFFFFFFFF)
        text = b"".join(map(write_frame, frames))
        return self.sealing.seal(number, header, text, encrypt=self.encrypt)
