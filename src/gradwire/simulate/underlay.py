"""Underlay: a Network of links in, the Matrix that planners read out, so that one specification feeds lab and planner.

Where hosts meet at routers, a pair's rate is the narrowest link on its way and every host's first and last link bound
what it carries in all. Where hosts are linked to each other, only neighbours have a rate; the planner relays.
"""

from __future__ import annotations

import math

import numpy as np

from gradwire.errors import ConfigError
from gradwire.network import Network
from gradwire.network.route import routes
from gradwire.plan.matrix import Matrix

# What a link without a limit is taken to carry: faster than any network card here, and finite for arithmetic.
UNLIMITED = 100e9 / 8


def matrix_of(network: Network) -> Matrix:
    """Members are the ranks, numbered as the lab numbers them."""
    names = [host.name for host in network.ranks]
    if len(names) < 2:
        raise ConfigError(f"net: {network.name} has {len(names)} rank hosts; planning takes two or more")
    place = {name: index for index, name in enumerate(names)}
    size = len(names)
    rate, trip = np.zeros((size, size)), np.zeros((size, size))
    up, down = np.full(size, math.inf), np.full(size, math.inf)
    direct = {(link.source, link.target) for link in network.links if {link.source, link.target} <= place.keys()}
    for (source, target), way in routes(network).items():
        if source not in place or target not in place or (direct and (source, target) not in direct):
            continue
        specs = [network.links[index].spec for index in way]
        i, j = place[source], place[target]
        rate[i, j] = min(min(float(spec.rate), UNLIMITED) for spec in specs)
        trip[i, j] += sum(float(spec.delay) for spec in specs)
        if not direct:
            up[i] = min(float(specs[0].rate), UNLIMITED)
            down[j] = min(float(specs[-1].rate), UNLIMITED)
    return Matrix.of(rate, trip + trip.T, tuple(range(size)), up=up, down=down)
