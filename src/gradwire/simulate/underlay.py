"""Underlay: turns a Network into the Matrix of a planner, so that lab and planner use one specification.

If hosts connect through routers, a pair's rate is that of the slowest link on its route, and the first and last links
limit the total of a host. If hosts are linked to each other, only neighbours have a rate; the planner relays. A link
whose rate follows a trace has the trace's mean rate.
"""

from __future__ import annotations

import math

import numpy as np

from gradwire.errors import ConfigError
from gradwire.network import LinkSpec, Network
from gradwire.network.route import routes
from gradwire.plan.matrix import Matrix

# Rate of a link without a limit: faster than any network card, and finite for arithmetic.
UNLIMITED = 100e9 / 8


def matrix_of(network: Network) -> Matrix:
    """The matrix of a network; members are the ranks, numbered as in the lab."""
    names = [host.name for host in network.ranks]
    if len(names) < 2:
        raise ConfigError(f"net: {network.name} has {len(names)} hosts that run a rank; planning needs at least two")
    index_of = {name: index for index, name in enumerate(names)}
    size = len(names)
    rate, trip = np.zeros((size, size)), np.zeros((size, size))
    up, down = np.full(size, math.inf), np.full(size, math.inf)
    direct = {(link.source, link.target) for link in network.links if {link.source, link.target} <= index_of.keys()}
    for (source, target), path in routes(network).items():
        if source not in index_of or target not in index_of or (direct and (source, target) not in direct):
            continue
        specs = [network.links[index].spec for index in path]
        i, j = index_of[source], index_of[target]
        rate[i, j] = min(_rate(spec) for spec in specs)
        trip[i, j] += sum(float(spec.delay) for spec in specs)
        if not direct:
            up[i] = _rate(specs[0])
            down[j] = _rate(specs[-1])
    return Matrix.of(rate, trip + trip.T, tuple(range(size)), up=up, down=down)


def _rate(spec: LinkSpec) -> float:
    return min(float(spec.mean_rate), UNLIMITED)
