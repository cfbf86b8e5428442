"""Pulse: the small fixed-size record that every rank sends to all others once a step, off the critical path.

It carries what the rank measured in its last step, the timestamps for round trips and clock offsets, and, from rank 0,
the level and the transport that all ranks use from the next step on. Reports about single links reach rank 0 with it,
one link at a time. It has 384 bytes, so that its transfer time is latency only.

    offset  bytes  field
    0       2      magic "gp"
    2       1      format version
    3       1      1: facts are valid
    4       4      number of the pulse
    8       4      version of the decision
    12      4      bytes of the level's text, then of the reason's
    16      64     8 doubles: seconds, exposed, busy, wire bytes, work, span, residual, loss
    80      32     4 doubles: sent, last bucket ready, echo of the receiver's timestamp, when that arrived (0: none)
    112     48     6 doubles of its acknowledgements: RTprop, bandwidth (0: unknown), queueing, loss, floor, restart
    160     4      latencies in a row of the longest exchange
    164     16     2 doubles of the round's divergence: own, shared
    180     4      steps of that round (0: none)
    184     4      local steps of the decision; 1: gradients are synchronised at every step
    188     4      transports, by their number: of the decision, to prepare, prepared on this rank; 1: that failed
    192     2      a rank that the sender has a link to, another one in each pulse (-1: none)
    194     16     4 floats of that link: round trip, rate, least rate, what all links carry together (0: unknown)
    210     4      CRC-32 of everything else
    214     170    the texts, UTF-8
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import Final

from gradwire.errors import IntegrityError
from gradwire.level import Level
from gradwire.types import TRANSPORTS, Acks, Decision, LinkFacts, Readiness, RoundNorms, StepFacts

SIZE: Final = 384
VERSION: Final = 6
_HEAD: Final = struct.Struct("<2sBBIIHH8d4d6dI2dII4Bh4fI")
_TEXT: Final = SIZE - _HEAD.size


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
    decision: Decision
    acks: Acks = field(default_factory=Acks)
    readiness: Readiness = field(default_factory=Readiness)
    link: LinkFacts = field(default_factory=LinkFacts)


def pack(pulse: Pulse) -> bytes:
    """The record's bytes; a reason that does not fit is truncated."""
    level = str(pulse.decision.level).encode()
    reason = pulse.decision.reason.encode()[: _TEXT - len(level)]
    facts, stamps = pulse.facts or StepFacts(), pulse.stamps
    head = (b"gp", VERSION, int(pulse.facts is not None), pulse.number, pulse.decision.version)
    numbers = (facts.seconds, facts.exposed, facts.busy, float(facts.wire_bytes), facts.work, facts.span)
    times = (facts.residual, facts.loss, stamps.sent, stamps.ready, stamps.echo, stamps.arrived)
    seen = pulse.acks
    acks = (seen.rtprop or 0.0, seen.bandwidth or 0.0, seen.queueing, seen.loss, seen.floor, seen.restart)
    apart = facts.divergence or RoundNorms(0, 0.0, 0.0)
    local = (apart.own, apart.shared, apart.steps, pulse.decision.sync_every)
    kinds = (pulse.decision.transport, pulse.decision.prepare, pulse.readiness.kind)
    carried = (*map(TRANSPORTS.index, kinds), int(pulse.readiness.failed))
    seen_link = (pulse.link.peer, pulse.link.rtprop, pulse.link.rate, pulse.link.floor, pulse.link.together)
    fields = (*head, len(level), len(reason), *numbers, *times, *acks, facts.hops, *local, *carried, *seen_link)
    text = (level + reason).ljust(_TEXT, b"\0")
    return _HEAD.pack(*fields, zlib.crc32(_HEAD.pack(*fields, 0) + text)) + text


def unpack(data: bytes) -> Pulse:
    """Parse a record; IntegrityError for bytes that are not one."""
    if len(data) != SIZE:
        raise IntegrityError(f"pulse has {len(data)} bytes, expected {SIZE}")
    fields = _HEAD.unpack_from(data)
    magic, version, valid, number, decided, level_size, reason_size = fields[:7]
    if magic != b"gp" or version != VERSION:
        raise IntegrityError("pulse has another format version; run the same gradwire on every rank")
    text = data[_HEAD.size :]
    if fields[-1] != zlib.crc32(_HEAD.pack(*fields[:-1], 0) + text) or level_size + reason_size > _TEXT:
        raise IntegrityError("pulse checksum does not match: the pulse was corrupted in transit")
    level = Level.parse(text[:level_size].decode(errors="replace"), setting="pulse")
    reason = text[level_size : level_size + reason_size].decode(errors="ignore")
    seconds, exposed, busy, wire, work, span, residual, loss, sent, ready, echo, arrived = fields[7:19]
    rtprop, bandwidth, queueing, lost, floor, restart, hops, own, shared, steps, sync_every = fields[19:30]
    *kinds, failed = fields[30:34]
    if max(kinds) >= len(TRANSPORTS):
        raise IntegrityError("pulse names an unknown transport; run the same gradwire on every rank")
    transport, prepare, prepared = (TRANSPORTS[kind] for kind in kinds)
    apart = RoundNorms(steps, own, shared) if steps else None
    facts = StepFacts(seconds, exposed, busy, int(wire), hops, work, span, (), residual, loss, divergence=apart)
    acks = Acks(rtprop or None, bandwidth or None, queueing, lost, floor, restart)
    decision = Decision(level, reason, decided, sync_every=sync_every, transport=transport, prepare=prepare)
    stamps, readiness = Stamps(sent, ready, echo, arrived), Readiness(prepared, bool(failed))
    return Pulse(number, facts if valid else None, stamps, decision, acks, readiness, LinkFacts(*fields[34:-1]))
