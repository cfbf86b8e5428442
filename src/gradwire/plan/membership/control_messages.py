"""Control messages: everything that members send each other beside gradients, and its encoding.

The membership messages (`plan.membership.messages`), link reports, requests for a probe, for results or for a replica
state, and the abort of a member. Encoded as msgpack of (kind, fields) and decoded against the type of the kind;
anything else is an IntegrityError. Field names are part of the encoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from gradwire.errors import IntegrityError
from gradwire.plan.membership.link_estimates import LinkObservation
from gradwire.plan.membership.messages import Ack, Announce, Commit, Install, Leave, Message, Ready, Regroup, Rejoin


@dataclass(frozen=True, slots=True)
class LinkReport:
    """Observations of a member's links since its last report; `at` is in seconds relative to the report."""

    observations: tuple[LinkObservation, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """Measure the link source -> destination, which carries too little to be measured.

    The coordinator sends this to the source. The source adds a `number` and forwards it when it sends the probe.
    """

    source: int
    destination: int
    number: int = 0


@dataclass(frozen=True, slots=True)
class Abort:
    """The sender stops; `why` is its error."""

    why: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """Request for the results of this step, or for the `whole` replica state after it."""

    step: int
    whole: bool = False
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class StateOffer:
    """Answer to a Fetch of the whole state: sizes in bytes of the description and of the tensors that follow."""

    epoch: int
    step: int
    header: int
    body: int


ControlMessage = Message | LinkReport | Probe | Abort | Fetch | StateOffer
# The position of a type is its kind on the wire: append only.
_KINDS: Final[tuple[type[ControlMessage], ...]] = (
    Announce, Ack, Commit, Regroup, Ready, Install, LinkReport, Probe, Abort, Fetch, Rejoin, Leave, StateOffer,
)  # fmt: skip


def pack(message: Message | ControlMessage) -> bytes:
    return msgspec.msgpack.encode((_KINDS.index(type(message)), message))


def unpack(data: bytes) -> ControlMessage:
    try:
        kind, body = msgspec.msgpack.decode(data, type=tuple[int, msgspec.Raw])
        wanted: type[ControlMessage] = _KINDS[kind]
        return msgspec.msgpack.decode(body, type=wanted)
    except (msgspec.DecodeError, IndexError) as error:
        raise IntegrityError(
            f"control message: cannot be decoded ({error}); install the same gradwire version on every rank"
        ) from error
