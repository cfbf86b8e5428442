"""Pulse: the small fixed-size record that every rank sends to all others once a step, off the critical path.

It carries what the rank measured in its last step, the timestamps for round trips and clock offsets, and when the
last decision reached the rank. Reports about single links reach rank 0 with it, one link at a time. It has 208 bytes,
so that its transfer time is latency only. What rank 0 decides from it: decide/decision_record.py.

    offset  bytes  field
    0       2      magic "gp"
    2       1      format version
    3       1      1: facts are valid
    4       4      number of the pulse
    8       64     8 doubles: seconds, exposed, busy, wire bytes, work, span, residual, loss
    72      32     4 doubles: sent, last bucket ready, echo of the receiver's timestamp, when that arrived (0: none)
    104     48     6 doubles of its acknowledgements: RTprop, bandwidth (0: unknown), queueing, loss, floor, restart
    152     4      latencies in a row of the longest exchange
    156     16     2 doubles of the round's divergence: own, shared
    172     4      steps of that round (0: none)
    176     2      the transport that is prepared on this rank, by its number; 1: that failed
    178     2      a rank that the sender has a link to, another one in each pulse (-1: none)
    180     16     4 floats of that link: round trip, rate, least rate, what all links carry together (0: unknown)
    196     8      by how much the last decision came later than this rank could have used it (0: unknown)
    204     4      CRC-32 of everything else
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import Final

from gradwire.errors import IntegrityError
from gradwire.types import TRANSPORTS, Acks, LinkFacts, Readiness, RoundNorms, StepFacts

VERSION: Final = 7
_RECORD: Final = struct.Struct("<2sBBI8d4d6dI2dIBBh4fdI")
SIZE: Final = _RECORD.size


@dataclass(frozen=True, slots=True)
class Stamps:
    """Times in the sender's clock, except `echo`, which is in the receiver's."""

    sent: float = 0.0
    ready: float = 0.0
    echo: float = 0.0
    arrived: float = 0.0


@dataclass(frozen=True, slots=True)
class Pulse:
    """One rank's record for one other rank."""

    number: int
    facts: StepFacts | None
    stamps: Stamps
    acks: Acks = field(default_factory=Acks)
    readiness: Readiness = field(default_factory=Readiness)
    link: LinkFacts = field(default_factory=LinkFacts)
    late: float = 0.0


def pack(pulse: Pulse) -> bytes:
    """The record's bytes."""
    facts, stamps = pulse.facts or StepFacts(), pulse.stamps
    head = (b"gp", VERSION, int(pulse.facts is not None), pulse.number)
    numbers = (facts.seconds, facts.exposed, facts.busy, float(facts.wire_bytes), facts.work, facts.span)
    times = (facts.residual, facts.loss, stamps.sent, stamps.ready, stamps.echo, stamps.arrived)
    seen = pulse.acks
    acks = (seen.rtprop or 0.0, seen.bandwidth or 0.0, seen.queueing, seen.loss, seen.floor, seen.restart)
    apart = facts.divergence or RoundNorms(0, 0.0, 0.0)
    local = (apart.own, apart.shared, apart.steps)
    prepared = (TRANSPORTS.index(pulse.readiness.kind), int(pulse.readiness.failed))
    link = (pulse.link.peer, pulse.link.rtprop, pulse.link.rate, pulse.link.floor, pulse.link.together)
    fields = (*head, *numbers, *times, *acks, facts.hops, *local, *prepared, *link, pulse.late)
    return _RECORD.pack(*fields, zlib.crc32(_RECORD.pack(*fields, 0)))


def unpack(data: bytes) -> Pulse:
    """Parse a record; IntegrityError for bytes that are not one."""
    if len(data) != SIZE:
        raise IntegrityError(f"pulse has {len(data)} bytes, expected {SIZE}")
    *fields, checksum = _RECORD.unpack(data)
    magic, version, valid, number = fields[:4]
    if magic != b"gp" or version != VERSION:
        raise IntegrityError("pulse has another format version; run the same gradwire on every rank")
    if checksum != zlib.crc32(_RECORD.pack(*fields, 0)):
        raise IntegrityError("pulse checksum does not match: the pulse was corrupted in transit")
    seconds, exposed, busy, wire, work, span, residual, loss, sent, ready, echo, arrived = fields[4:16]
    rtprop, bandwidth, queueing, lost, floor, restart, hops, own, shared, steps, prepared, failed = fields[16:28]
    if prepared >= len(TRANSPORTS):
        raise IntegrityError("pulse names an unknown transport; run the same gradwire on every rank")
    apart = RoundNorms(steps, own, shared) if steps else None
    facts = StepFacts(seconds, exposed, busy, int(wire), hops, work, span, (), residual, loss, divergence=apart)
    acks = Acks(rtprop or None, bandwidth or None, queueing, lost, floor, restart)
    stamps, readiness = Stamps(sent, ready, echo, arrived), Readiness(TRANSPORTS[prepared], bool(failed))
    link, late = LinkFacts(*fields[28:33]), fields[33]
    return Pulse(number, facts if valid else None, stamps, acks, readiness, link, late)
