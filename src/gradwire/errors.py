"""Errors that gradwire raises. Missing data is not an error but a result (`transport.wires.base.Delivery.missing`).

GradwireError
├── ConfigError      a wrong setting or argument, found before training; the message names it and the fix
├── LinkError        a network failure: a peer was lost, a deadline passed
│   ├── NoAnswerError    a peer never answered; another wire may work
│   └── PeerClosedError  a peer closed its connection normally while a transfer with it was still expected
└── IntegrityError   corrupted data or a bug in gradwire: training must stop
"""


class GradwireError(Exception):
    """Base class of all errors that gradwire raises."""


class ConfigError(GradwireError, ValueError):
    """A setting is wrong; the message names it and says what to write instead."""


class LinkError(GradwireError, ConnectionError):
    """The network failed; the message names the peer, what happened, and what to try."""


class NoAnswerError(LinkError):
    """A peer never answered: it is not running, or the network drops this kind of packet."""


class PeerClosedError(LinkError):
    """A peer closed its connection normally. Whether that is a failure depends on what was still expected from it."""


class IntegrityError(GradwireError, RuntimeError):
    """Data was corrupted, or replicas differ."""
