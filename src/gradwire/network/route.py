"""Route: the links between every ordered pair of hosts: least delay, then fewest hops.

Dijkstra from each host. Routers forward; a host forwards only with `forwards` (a site with its own gateway).
"""

from __future__ import annotations

import heapq

from gradwire.errors import ConfigError
from gradwire.network.network import Network

Routes = dict[tuple[str, str], tuple[int, ...]]
# A hop costs a microsecond in addition to its delay, so that the shorter route wins between links without delay.
HOP_COST = 1e-6


def routes(network: Network) -> Routes:
    """Link indices from each host to each other host; ConfigError names a pair without a route."""
    outgoing: dict[str, list[int]] = {}
    for index, link in enumerate(network.links):
        outgoing.setdefault(link.source, []).append(index)
    forwarding = set(network.routers) | {host.name for host in network.hosts if host.forwards}
    found: Routes = {}
    for host in network.hosts:
        from_host = _routes_from(host.name, network, outgoing, forwarding)
        for other in network.hosts:
            if other.name == host.name:
                continue
            if other.name not in from_host:
                raise ConfigError(
                    f"host {other.name!r} cannot be reached from {host.name!r}: "
                    "add a link or a router between them (hosts forward only with forwards = true)"
                )
            found[host.name, other.name] = from_host[other.name]
    return found


def _routes_from(
    start: str, network: Network, outgoing: dict[str, list[int]], forwarding: set[str]
) -> dict[str, tuple[int, ...]]:
    best: dict[str, tuple[int, ...]] = {}
    todo: list[tuple[float, tuple[int, ...], str]] = [(0.0, (), start)]
    while todo:
        cost, path, node = heapq.heappop(todo)
        if node in best:
            continue
        best[node] = path
        if node != start and node not in forwarding:
            continue
        for index in outgoing.get(node, ()):
            link = network.links[index]
            if link.target not in best:
                heapq.heappush(todo, (cost + float(link.spec.delay) + HOP_COST, (*path, index), link.target))
    return best
