"""The error tree. Missing data is a result (`Delivery.missing`), never one of these.

GradwireError
├── ConfigError      the caller's mistake, found at assembly; names the setting and the fix
├── LinkError        the network's doing: a peer lost, a deadline passed
│   ├── NoAnswerError    nothing came back at all; another kind of wire may get through
│   └── PeerClosedError  a peer closed its end in order, and something was still to come from it or to go to it
└── IntegrityError   corruption or a bug of ours: training must stop
"""


class GradwireError(Exception):
    """Whatever gradwire raises on purpose."""


class ConfigError(GradwireError, ValueError):
    """A setting is wrong; the message names it and says what to write instead."""


class LinkError(GradwireError, ConnectionError):
    """The network failed us: which peer, since when, and what to try."""


class NoAnswerError(LinkError):
    """A peer never answered: it is not running, or something between us drops this kind of packet."""


class PeerClosedError(LinkError):
    """A peer closed its connection in order. Whether that is a loss depends on what was still expected of it."""


class IntegrityError(GradwireError, RuntimeError):
    """Bytes are not what their sender made them, or replicas disagree."""
