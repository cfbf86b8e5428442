"""Decision record: rank 0's decision as the other ranks receive it.

Rank 0 sends one to every other rank in each round of pulses, as soon as it has decided.

    offset  bytes  field
    0       2      magic "gd"
    2       1      format version
    3       1      delay of the decisions after it
    4       4      version of the decision
    8       4      local steps; 1: gradients are synchronised at every step
    12      2      transports, by their number: that carries the step, to prepare
    14      4      bytes of the level's text, then of the reason's
    18      4      CRC-32 of everything else
    22      234    the texts, UTF-8
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from gradwire.errors import IntegrityError
from gradwire.level import Level
from gradwire.types import TRANSPORTS, Decision

SIZE: Final = 256
VERSION: Final = 1
_HEAD: Final = struct.Struct("<2sBBIIBBHHI")
_TEXT: Final = SIZE - _HEAD.size


def pack_decision(decision: Decision) -> bytes:
    """The record's bytes; a reason that does not fit is truncated."""
    level = str(decision.level).encode()
    reason = decision.reason.encode()[: _TEXT - len(level)]
    kinds = (TRANSPORTS.index(decision.transport), TRANSPORTS.index(decision.prepare))
    fields = (b"gd", VERSION, decision.delay, decision.version, decision.sync_every, *kinds, len(level), len(reason))
    text = (level + reason).ljust(_TEXT, b"\0")
    return _HEAD.pack(*fields, zlib.crc32(_HEAD.pack(*fields, 0) + text)) + text


def unpack_decision(data: bytes) -> Decision:
    """Parse a record; IntegrityError for bytes that are not one."""
    if len(data) != SIZE:
        raise IntegrityError(f"decision has {len(data)} bytes, expected {SIZE}")
    *fields, checksum = _HEAD.unpack_from(data)
    magic, layout, delay, version, sync_every, transport, prepare, level_size, reason_size = fields
    if magic != b"gd" or layout != VERSION:
        raise IntegrityError("decision has another format version; run the same gradwire on every rank")
    text = data[_HEAD.size :]
    if checksum != zlib.crc32(_HEAD.pack(*fields, 0) + text) or level_size + reason_size > _TEXT:
        raise IntegrityError("decision checksum does not match: the decision was corrupted in transit")
    if max(transport, prepare) >= len(TRANSPORTS):
        raise IntegrityError("decision names an unknown transport; run the same gradwire on every rank")
    level = Level.parse(text[:level_size].decode(errors="replace"), setting="decision")
    reason = text[level_size : level_size + reason_size].decode(errors="ignore")
    kinds = {"transport": TRANSPORTS[transport], "prepare": TRANSPORTS[prepare]}
    return Decision(level, reason, version, sync_every=sync_every, delay=delay, **kinds)
