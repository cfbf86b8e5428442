"""Frames of docs/ltp.md, section 4: bytes to fields and back, for the receiver of `ltp_receiver`."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

PADDING, PING, ACK, OPEN, DATA, POSTED, GRANT, CLOSE, ABORT, SHUT, HOLD, ONCE, WEIGHTED, CHALLENGE, RESPONSE = range(15)

_FIXED: Final = {
    PING: "", POSTED: ">QQ", GRANT: ">Q", ABORT: ">Q", SHUT: ">B", HOLD: ">Q", ONCE: ">Q",
    CHALLENGE: ">Q", RESPONSE: ">Q",
}  # fmt: skip


@dataclass(slots=True)
class Frame:
    """Type and fields in the order of section 4; DATA's bytes and ranges come last."""

    kind: int
    fields: tuple[int, ...] = ()
    data: bytes = b""
    ranges: list[tuple[int, int]] = field(default_factory=list)


def parse_frames(text: bytes) -> list[Frame]:
    """All frames of a packet; ValueError where one is malformed."""
    frames, at = [], 0

    def take(layout: str) -> tuple[int, ...]:
        nonlocal at
        if at + struct.calcsize(layout) > len(text):
            raise ValueError("cut short")
        values = struct.unpack_from(layout, text, at)
        at += struct.calcsize(layout)
        return values

    while at < len(text):
        kind = text[at]
        at += 1
        frame = Frame(kind)
        if kind == PADDING:
            if any(text[at:]):
                raise ValueError("padding is zero")
            at = len(text)
        elif kind in _FIXED:
            frame.fields = take(_FIXED[kind]) if _FIXED[kind] else ()
        elif kind == ACK:
            high, low, delay, stamp, words = take(">HIIIB")
            frame.fields = (high << 32 | low, delay, stamp, *take(f">{words}Q"))
        elif kind == OPEN:
            frame.fields = take(">QQQHHIIIQBB")
            frame.ranges = [(first, count) for first, count in (take(">II") for _ in range(frame.fields[-1]))]
        elif kind in {DATA, WEIGHTED}:
            number, first, length, *share = take(">QIH" if kind == DATA else ">QIHH")
            frame.fields, frame.data = (number, first, *share), text[at : at + length]
            if not length or len(frame.data) != length:
                raise ValueError("DATA without its bytes")
            at += length
        elif kind == CLOSE:
            frame.fields = take(">QBQHHH")
            frame.ranges = [(first, count) for first, count in (take(">II") for _ in range(frame.fields[-1]))]
        else:
            raise ValueError(f"unknown frame {kind}")
        frames.append(frame)
    return frames


def write_frame(frame: Frame) -> bytes:
    """The opposite of `parse_frames`, for one frame."""
    kind, values = bytes([frame.kind]), frame.fields
    ranges = b"".join(struct.pack(">II", *each) for each in frame.ranges)
    if frame.kind == PADDING:
        return kind
    if frame.kind == ACK:
        base, delay, stamp, *words = values
        layout = f">HIIIB{len(words)}Q"
        return kind + struct.pack(layout, base >> 32, base & 0xFFFFFFFF, delay, stamp, len(words), *words)
    if frame.kind == DATA:
        return kind + struct.pack(">QIH", *values, len(frame.data)) + frame.data
    if frame.kind == WEIGHTED:
        number, first, share = values
        return kind + struct.pack(">QIHH", number, first, len(frame.data), share) + frame.data
    layout = {OPEN: ">QQQHHIIIQBB", CLOSE: ">QBQHHH", **_FIXED}[frame.kind]
    return kind + (struct.pack(layout, *values) if layout else b"") + ranges
