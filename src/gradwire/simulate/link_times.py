"""Link times: one link of a network over time, and what of it each flow gets."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gradwire.network import Network
from gradwire.network.link_spec import LinkSpec
from gradwire.network.network import CrossTraffic
from gradwire.network.route import Routes
from gradwire.simulate.underlay import UNLIMITED

# IP and TCP headers with timestamps.
HEADERS: Final = 52


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """One link over time: its specs from each change on, and the cross traffic on it."""

    payload: float
    wire_size: float
    starts: tuple[float, ...]
    specs: tuple[LinkSpec, ...]
    cross: tuple[CrossTraffic, ...] = ()

    @classmethod
    def of(cls, network: Network, paths: Routes, index: int) -> LinkTimes:
        link = network.links[index]
        starts, specs = [0.0], [link.spec]
        for change in sorted(network.changes, key=lambda one: one.at):
            if change.matches(link):
                starts.append(float(change.at))
                specs.append(change.applied(specs[-1]))
        cross = tuple(one for one in network.cross if index in paths[one.source, one.target])
        mtu = link.spec.mtu
        return cls(mtu - HEADERS, mtu + network.overhead, tuple(starts), tuple(specs), cross)

    @property
    def lossless(self) -> bool:
        """Whether packets are lost at no time, except by a full queue."""
        return all(spec.mean_loss == 0 for spec in self.specs)

    def spec_at(self, now: float) -> LinkSpec:
        return self.specs[bisect.bisect_right(self.starts, now) - 1]

    def payload_rate(self, now: float, flows: int) -> float:
        """Payload bytes per second for each of `flows` at this time."""
        rate = self.rate(now)
        for one in self.cross:
            if one.start <= now and (one.stop is None or now < one.stop):
                if one.rate is not None:
                    rate = max(0.1 * rate, rate - float(one.rate) * one.flows)
                else:
                    rate *= flows / (flows + one.flows)
        return rate * self.payload / self.wire_size / flows

    def rate(self, now: float) -> float:
        spec = self.spec_at(now)
        trace = spec.trace
        if trace is None:
            return min(float(spec.rate), UNLIMITED)
        # A change of other values continues the trace; one of the rate ends it.
        return float(trace.rates[bisect.bisect_right(trace.times, now % trace.period) - 1])


def crossing_flows(paths: Iterable[tuple[int, ...]]) -> Counter[int]:
    """How many of the paths use each link."""
    return Counter(index for path in paths for index in path)


def loss_events(spec: LinkSpec) -> float:
    """Bursts of losses per packet: single losses, and entries into the bad state in which something is lost."""
    if spec.burst is None:
        return spec.loss
    burst = spec.burst
    in_good_state = burst.leave / (burst.enter + burst.leave)
    return spec.loss + burst.enter * in_good_state * min(1.0, burst.loss / burst.leave)
