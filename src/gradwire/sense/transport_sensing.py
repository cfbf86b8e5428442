"""TransportSensing: what was learned of the network over one transport. Another transport shows another network."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradwire.sense.ack_stats import AckMeter, AckStats
from gradwire.sense.estimator import Estimator


@dataclass(frozen=True, slots=True)
class TransportSensing:
    """A rank's meter of acknowledgements; on rank 0 also the estimates from them and from steps."""

    meter: AckMeter = field(default_factory=AckMeter)
    stats: AckStats = field(default_factory=AckStats)
    estimator: Estimator = field(default_factory=Estimator)
