"""Pulse: the small fixed record that every rank sends every rank once a step, off the critical path.

It carries what the rank measured in its last step and, from rank 0, the level all ranks are to use from the step after
next. 256 bytes, so that its own travel time is the network's latency.

    offset  bytes  field
    0       2      magic "gp"
    2       1      layout version
    3       1      1: facts are valid
    4       4      number of the step the facts are of
    8       4      version of the decision
    12      4      bytes of the level's text, then of the reason's
    16      64     8 doubles: seconds, exposed, busy, wire bytes, work, span, residual, loss
    80      8      round trip that this rank measured with its last pulse, double
    88      4      hops of the longest exchange
    92      4      CRC-32 of everything else
    96      160    the texts, UTF-8
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Final

from gradwire.errors import IntegrityError
from gradwire.flow import Decision, StepFacts
from gradwire.level import Level

SIZE: Final = 256
VERSION: Final = 1
_HEAD: Final = struct.Struct("<2sBBIIHH8ddII")
_TEXT: Final = SIZE - _HEAD.size


@dataclass(frozen=True, slots=True)
class Pulse:
    """One rank's record."""

    step: int
    facts: StepFacts | None
    latency: float
    decision: Decision


def pack(pulse: Pulse) -> bytes:
    """The record's bytes; a reason that does not fit is cut."""
    level = str(pulse.decision.level).encode()
    reason = pulse.decision.reason.encode()[: _TEXT - len(level)]
    facts = pulse.facts or StepFacts()
    numbers = (facts.seconds, facts.exposed, facts.busy, float(facts.wire_bytes), facts.work, facts.span)
    head = (b"gp", VERSION, int(pulse.facts is not None), pulse.step, pulse.decision.version, len(level), len(reason))
    tail = (*numbers, facts.residual, facts.loss, pulse.latency, facts.hops)
    text = (level + reason).ljust(_TEXT, b"\0")
    checksum = zlib.crc32(_HEAD.pack(*head, *tail, 0) + text)
    return _HEAD.pack(*head, *tail, checksum) + text


def unpack(data: bytes) -> Pulse:
    """Read a record; IntegrityError when it is not one."""
    if len(data) != SIZE:
        raise IntegrityError(f"pulse of {len(data)} bytes, expected {SIZE}")
    fields = _HEAD.unpack_from(data)
    magic, version, valid, step, decided, level_size, reason_size = fields[:7]
    numbers, checksum = fields[7:-1], fields[-1]
    if magic != b"gp" or version != VERSION:
        raise IntegrityError("pulse of another version; run the same gradwire on every rank")
    if checksum != zlib.crc32(_HEAD.pack(*fields[:-1], 0) + data[_HEAD.size :]) or level_size + reason_size > _TEXT:
        raise IntegrityError("pulse was corrupted on the way")
    text = data[_HEAD.size :]
    level = Level.parse(text[:level_size].decode(), setting="pulse")
    reason = text[level_size : level_size + reason_size].decode(errors="ignore")
    seconds, exposed, busy, wire, work, span, residual, loss, latency, hops = numbers
    facts = StepFacts(seconds, exposed, busy, int(wire), hops, work, span, (), residual, loss) if valid else None
    return Pulse(step, facts, latency, Decision(level, reason, decided))
