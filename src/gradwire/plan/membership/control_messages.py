"""News: everything that members tell each other beside gradients, and its bytes.

The policy's messages (`plan.messages`), reports of what links carried, requests for a probe or for what a member
missed, and "I am stopping".
Bytes are msgpack of (kind, fields), parsed against the kind's type: what does not fit is an IntegrityError.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from gradwire.errors import IntegrityError
from gradwire.plan.membership.awareness import LinkObservation
from gradwire.plan.membership.messages import Ack, Announce, Commit, Install, Leave, Message, Ready, Regroup, Rejoin


@dataclass(frozen=True, slots=True)
class LinkReport:
    """What a member's links carried since its last report; `age` of each is in `at`, seconds before sending."""

    observations: tuple[LinkObservation, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """Measure the link source -> destination: it carries little by itself.

    The coordinator asks the source, which gives it a `number` and tells the destination when it sends one.
    """

    source: int
    destination: int
    number: int = 0


@dataclass(frozen=True, slots=True)
class Abort:
    """The sender stops, because of this."""

    why: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """The sender missed the result of this step and asks for it, or for everything as it is after this step."""

    step: int
    whole: bool = False
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class StateOffer:
    """The answer to a Fetch of everything: so many bytes of description and of tensors are on their way."""

    epoch: int
    step: int
    header: int
    body: int


ControlMessage = Message | LinkReport | Probe | Abort | Fetch | StateOffer
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
        raise IntegrityError(f"a member's message cannot be read: {error}") from error
