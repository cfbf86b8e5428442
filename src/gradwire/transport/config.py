"""TransportConfig: the `[transport]` table of a configuration (see gradwire/config.py)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Positive = Annotated[float, msgspec.Meta(gt=0)]


class TransportConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How bytes are sent between ranks."""

    # Seconds before an operation whose peer does not answer becomes a LinkError on every rank. Long enough for one rank
    # to evaluate or save while the others wait for it; a process that died is noticed much sooner.
    timeout: Positive = 600.0
    # "group" uses the collectives of the model's process group, "ltp" gradwire's own loss-tolerant transport over UDP,
    # "tcp" gradwire's own streams over TCP. "auto" begins with the group and changes to one of the others while
    # training with an adaptive level, where that is predicted and then measured to shorten steps.
    # Plans always use a wire of gradwire: "tcp", otherwise LTP (also with "group" and "auto").
    kind: Literal["auto", "group", "ltp", "tcp"] = "auto"
    # LTP: the share of each frame's values that its owner waits for, until a deadline; the sender adds the rest to its
    # residual.
    tolerance: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.98
    # LTP and TCP: encrypt payloads, not only authenticate them.
    encrypt: bool = True
    # LTP and TCP: seconds of silence after which a peer counts as lost; a paused process is waited for that long.
    dead_after: Annotated[float, msgspec.Meta(gt=2)] = 15.0
    # LTP and TCP: seconds to wait for the first answer of a peer.
    connect: Positive = 30.0
